#pragma once
/// The grouped products in mma.sync, for devices without wgmma and tensor copies (from compute capability 8.0 on). Their
/// arguments are checked by the callers in dispatch.cu and slot_product.cu.

#include "kernels/base/cuda.hpp"
#include "kernels/grouped_linear/cuda.hpp"

namespace moeplan::kernels::grouped_linear::portable {

void forward(const Forward& args, cudaStream_t stream);
void input_gradient(const InputGradient& args, cudaStream_t stream);
void slot_product(const SlotProduct& args, cudaStream_t stream);

} // namespace moeplan::kernels::grouped_linear::portable
