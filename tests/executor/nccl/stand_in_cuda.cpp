/// The calls of the CUDA run time that the opening of a world makes, found before those of the library. Streams and events are there and do nothing.

#include <cuda_runtime_api.h>

namespace {

int place = 0;
template <class Handle>
cudaError_t made(Handle* handle) {
  return *handle = reinterpret_cast<Handle>(&place), cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return made(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return made(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "the stand-in has no such call"; }

// Never come to: an opening moves nothing.
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaErrorNotSupported; }
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) { return cudaErrorNotSupported; }
cudaError_t cudaMalloc(void**, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaFree(void*) { return cudaErrorNotSupported; }
cudaError_t cudaMemset(void*, int, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaDeviceSynchronize() { return cudaErrorNotSupported; }
cudaError_t cudaGetDevice(int*) { return cudaErrorNotSupported; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, cudaDriverEntryPointQueryResult*) { return cudaErrorNotSupported; }

}  // extern "C"
