#pragma once
/// All PTX wrappers. Each is one instruction (or one fixed pair) with its operands named; see the headers for units.

#include "kernels/base/ptx/address.cuh"
#include "kernels/base/ptx/async_copy.cuh"
#include "kernels/base/ptx/fence.cuh"
#include "kernels/base/ptx/matrix.cuh"
#include "kernels/base/ptx/mbarrier.cuh"
#include "kernels/base/ptx/wgmma.cuh"
