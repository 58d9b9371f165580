#pragma once
/// Sizes of a grouped linear layer, shared by reference and kernels.

namespace moeplan::kernels::grouped_linear {

/// Where a gated pair of halves lies in the rows of a weight [2 i, h].
enum class GateLayout : int {
    halves,      ///< rows 0 to i - 1 are the gate, i to 2 i - 1 the linear part
    interleaved, ///< even rows are the gate, odd rows the linear part (gpt-oss)
};

struct Dims {
    int experts = 0;
    int rows = 0;    ///< bound of offsets[experts]; buffers hold this many rows
    int in = 0;      ///< input width, a multiple of 8
    int out = 0;     ///< rows of one expert's weight, a multiple of 8 (gated: of 16)
    bool operator==(const Dims&) const = default;
};

} // namespace moeplan::kernels::grouped_linear
