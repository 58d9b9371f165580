/// \file
/// The gate-up product with its activation: contiguous and gathered rows, single blocks and pairs.
#include "kernels/grouped_linear/launch.cuh"

namespace moeplan::kernels::grouped_linear {

template void launch<Config<true, Major::k, false, 1>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<true, Major::k, false, 2>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<true, Major::k, true, 1>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<true, Major::k, true, 2>>(const Maps&, const Problem&, const std::string&, cudaStream_t);

} // namespace moeplan::kernels::grouped_linear
