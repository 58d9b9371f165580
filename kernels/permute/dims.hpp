#pragma once
/// Sizes of sort, permute and combine, shared by references and kernels.

namespace moeplan::kernels::permute {

struct Dims {
    int tokens = 0;
    int top_k = 0;
    int experts = 0;
    int copies = 0;   ///< total of all experts' copies; equal to experts without replicas
    int capacity = 0; ///< most rows of one copy; later tokens are dropped. 0: no limit
    bool operator==(const Dims&) const = default;
};

} // namespace moeplan::kernels::permute
