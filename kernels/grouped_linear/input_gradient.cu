/// \file
/// The input gradient: weights read along their columns by transposing descriptors.
#include "kernels/grouped_linear/launch.cuh"

namespace moeplan::kernels::grouped_linear {

template void launch<Config<false, Major::mn, false, 1>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<false, Major::mn, false, 2>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<false, Major::mn, true, 1>>(const Maps&, const Problem&, const std::string&, cudaStream_t);
template void launch<Config<false, Major::mn, true, 2>>(const Maps&, const Problem&, const std::string&, cudaStream_t);

} // namespace moeplan::kernels::grouped_linear
