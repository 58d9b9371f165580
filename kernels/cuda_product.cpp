#include "kernels/cuda_product.hpp"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <tuple>

#include "core/error.hpp"
#include "kernels/base/cuda.hpp"

namespace moeplan::cuda {
namespace {

/// The functions used, of the library that the machine has: loaded where products are wanted, so that a program which never multiplies
/// starts without half a gigabyte of library, and on machines that have none.
struct Library {
  std::unique_ptr<void, int (*)(void*)> handle{nullptr, dlclose};
#define MOEPLAN_CUBLASLT(f) decltype(&cublasLt##f) f = nullptr;
#define MOEPLAN_CUBLASLT_FUNCTIONS                                                                                                    \
  MOEPLAN_CUBLASLT(Create) MOEPLAN_CUBLASLT(Destroy) MOEPLAN_CUBLASLT(GetStatusName) MOEPLAN_CUBLASLT(GetStatusString)                \
  MOEPLAN_CUBLASLT(MatmulDescCreate) MOEPLAN_CUBLASLT(MatmulDescDestroy) MOEPLAN_CUBLASLT(MatmulDescSetAttribute)                     \
  MOEPLAN_CUBLASLT(MatrixLayoutCreate) MOEPLAN_CUBLASLT(MatrixLayoutDestroy) MOEPLAN_CUBLASLT(MatmulPreferenceCreate)                 \
  MOEPLAN_CUBLASLT(MatmulPreferenceDestroy) MOEPLAN_CUBLASLT(MatmulPreferenceSetAttribute) MOEPLAN_CUBLASLT(MatmulAlgoGetHeuristic)   \
  MOEPLAN_CUBLASLT(Matmul)
  MOEPLAN_CUBLASLT_FUNCTIONS
#undef MOEPLAN_CUBLASLT

  Library() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"}) {
      handle.reset(dlopen(name, RTLD_NOW | RTLD_LOCAL));
      if (handle) break;
    }
    if (!handle) throw InputError("cuBLASLt", "libcublasLt.so is not found", "install the CUDA run time's libcublas, or set LD_LIBRARY_PATH to it");
    const auto find = [&](const char* name) {
      void* const f = dlsym(handle.get(), name);
      if (f == nullptr) throw InputError("cuBLASLt", fmt::format("has no {}", name), "CUDA 13's has");
      return f;
    };
#define MOEPLAN_CUBLASLT(f) f = reinterpret_cast<decltype(f)>(find("cublasLt" #f));
    MOEPLAN_CUBLASLT_FUNCTIONS
#undef MOEPLAN_CUBLASLT
  }

  void check(cublasStatus_t status, const std::string& doing) const {
    if (status != CUBLAS_STATUS_SUCCESS) throw kernels::CudaError(cudaErrorUnknown, fmt::format("{}: cuBLASLt says {} ({})", doing, GetStatusString(status), GetStatusName(status)));
  }
};

cudaDataType_t type_of(DType t) {
  if (t == DType::bf16) return CUDA_R_16BF;
  if (t == DType::f32) return CUDA_R_32F;
  throw InputError("matrix product", fmt::format("takes bf16 and f32, not {}", name_of(t)), "cast or dequantise first");
}

/// Largest power of two up to 256 that divides the address.
std::uint32_t alignment(const void* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  return static_cast<std::uint32_t>(at == 0 ? 256 : std::min<std::uintptr_t>(256, at & (~at + 1)));
}

/// A cuBLASLt object and its end.
template <class T>
struct Owned {
  T value = nullptr;
  cublasStatus_t (*destroy)(T) = nullptr;
  explicit Owned(cublasStatus_t (*end)(T)) : destroy(end) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (value != nullptr) (void)destroy(value);
  }
};
using Layout = Owned<cublasLtMatrixLayout_t>;
using Description = Owned<cublasLtMatmulDesc_t>;
using Preference = Owned<cublasLtMatmulPreference_t>;

using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, int, int, int, std::int64_t, std::int64_t, std::int64_t, std::uint32_t, std::uint32_t, std::uint32_t>;

}  // namespace

struct Products::State {
  Library lt;
  cublasLtHandle_t handle = nullptr;
  kernels::DeviceBuffer workspace{workspace_bytes};
  std::map<Shape, cublasLtMatmulAlgo_t> chosen;
  State() { lt.check(lt.Create(&handle), "start cuBLASLt"); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { (void)lt.Destroy(handle); }

  template <class T>
  void set(const Description& d, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    lt.check(lt.MatmulDescSetAttribute(d.value, attribute, &value, sizeof value), "describe a product");
  }
  template <class T>
  void set(const Preference& p, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) const {
    lt.check(lt.MatmulPreferenceSetAttribute(p.value, attribute, &value, sizeof value), "describe a product");
  }
  /// Row-major [rows, columns] is the library's column-major [columns, rows].
  void lay_out(Layout& l, DType type, std::int64_t rows, std::int64_t columns, std::int64_t stride) const {
    lt.check(lt.MatrixLayoutCreate(&l.value, type_of(type), static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), stride), "describe a matrix");
  }
};

Products::Products() : state_(std::make_unique<State>()) {}
Products::~Products() = default;
Products::Products(Products&&) noexcept = default;
Products& Products::operator=(Products&&) noexcept = default;

void Products::multiply(const Factor& a, const Factor& b, void* c, DType c_type, float alpha, float beta, cudaStream_t stream, std::int64_t c_stride, const void* bias) {
  const std::int64_t m = a.transposed ? a.columns : a.rows, inner = a.transposed ? a.rows : a.columns;
  const std::int64_t n = b.transposed ? b.rows : b.columns, b_inner = b.transposed ? b.columns : b.rows;
  const std::string shape = fmt::format("product [{}, {}] x [{}, {}]", m, inner, b_inner, n);
  if (inner != b_inner) throw InputError(shape, "inner extents differ", "");
  if (m == 0 || n == 0) return;
  const std::int64_t a_stride = a.stride ? a.stride : a.columns, b_stride = b.stride ? b.stride : b.columns, stride = c_stride ? c_stride : n;
  if (inner == 0) {   // the library wants one
    if (beta == 0) kernels::check(cudaMemset2DAsync(c, static_cast<std::size_t>(stride * (c_type == DType::f32 ? 4 : 2)), 0, static_cast<std::size_t>(n * (c_type == DType::f32 ? 4 : 2)), static_cast<std::size_t>(m), stream), shape);
    return;
  }
  // c^T = op(b)^T op(a)^T: what is stored row by row is already the transpose of what the library reads.
  State& state = *state_;
  const Library& lt = state.lt;
  Description d(lt.MatmulDescDestroy);
  lt.check(lt.MatmulDescCreate(&d.value, CUBLAS_COMPUTE_32F, CUDA_R_32F), shape);
  state.set(d, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  state.set(d, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias != nullptr) {
    state.set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    state.set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    state.set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  Layout la(lt.MatrixLayoutDestroy), lb(lt.MatrixLayoutDestroy), lc(lt.MatrixLayoutDestroy);
  state.lay_out(la, b.dtype, b.rows, b.columns, b_stride);
  state.lay_out(lb, a.dtype, a.rows, a.columns, a_stride);
  state.lay_out(lc, c_type, m, n, stride);
  const int types = static_cast<int>(a.dtype) | static_cast<int>(b.dtype) << 8 | static_cast<int>(c_type) << 16;
  const Shape key{m, n, inner, (a.transposed ? 1 : 0) | (b.transposed ? 2 : 0) | (beta != 0 ? 4 : 0), types, bias != nullptr, a_stride, b_stride, stride, alignment(b.data), alignment(a.data), alignment(c)};
  auto found = state.chosen.find(key);
  if (found == state.chosen.end()) {
    Preference p(lt.MatmulPreferenceDestroy);
    lt.check(lt.MatmulPreferenceCreate(&p.value), shape);
    state.set(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    state.set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b.data));
    state.set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a.data));
    state.set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c));
    state.set(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(c));
    state.set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));   // none, or a second pass in fp32
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const auto status = lt.MatmulAlgoGetHeuristic(state.handle, d.value, la.value, lb.value, lc.value, lc.value, p.value, 1, &result, &count);
    lt.check(count == 0 && status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status, "choose an algorithm for the " + shape);
    found = state.chosen.emplace(key, result.algo).first;
  }
  lt.check(lt.Matmul(state.handle, d.value, &alpha, b.data, la.value, a.data, lb.value, &beta, c, lc.value, c, lc.value, &found->second, state.workspace.get(), workspace_bytes, stream), shape);
}

}  // namespace moeplan::cuda
