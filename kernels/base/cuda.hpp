#pragma once
/// The CUDA runtime behind value types: errors that name the kernel and its shape, and move-only owners of streams,
/// events and device memory. Header-only; include it only from code that is built where CUDA is.
///
///     DeviceBuffer x(bytes);
///     my_kernel<<<grid, block, 0, stream.get()>>>(...);
///     check_launch("rms_norm forward", "tokens=8192 hidden=7168");

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace moeplan::kernels {

/// A CUDA call failed. `what()` reads "<doing>: <CUDA's message> (<CUDA's name>)".
struct CudaError : std::runtime_error {
    CudaError(cudaError_t error, std::string_view doing)
        : std::runtime_error(std::string(doing) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) +
                             ")"),
          code(error) {}
    cudaError_t code;
};

/// A request a kernel cannot do, found on the host before anything was launched. The message says what, the numbers,
/// and which operator or setting would do.
struct UnsupportedShape : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

/// Throws `CudaError` unless `error` is success. `doing` names the call, e.g. "allocate 8 GiB".
inline void check(cudaError_t error, std::string_view doing) {
    if (error != cudaSuccess) throw CudaError(error, doing);
}

/// Throws `CudaError` if the launch just made was refused. Errors of the running kernel surface at the next
/// synchronisation. `shape` reads like "tokens=8192 hidden=7168".
inline void check_launch(std::string_view kernel, std::string_view shape) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) throw CudaError(error, std::string(kernel) + " [" + std::string(shape) + "]");
}

/// Number of CUDA devices; 0 where there is no driver.
[[nodiscard]] inline int device_count() noexcept {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count;
}

/// What the launch code asks about the current device.
struct DeviceFacts {
    int multiprocessors;
    int compute_capability;         ///< 10 * major + minor: 90 is Hopper
    std::size_t shared_bytes_block; ///< most shared memory one block may ask for
};

/// Reads the facts of the current device (three attribute queries, no synchronisation).
[[nodiscard]] inline DeviceFacts device_facts() {
    int device = 0, count = 0, major = 0, minor = 0, shared = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessor count");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
    check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory limit");
    return {count, 10 * major + minor, static_cast<std::size_t>(shared)};
}

/// Owns a non-blocking stream.
class Stream {
public:
    Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream"); }
    ~Stream() {
        if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    }
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream& operator=(Stream&& other) noexcept {
        std::swap(stream_, other.stream_);
        return *this;
    }
    [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
    /// Waits for everything queued so far and reports what went wrong in it.
    void synchronize() const { check(cudaStreamSynchronize(stream_), "synchronise a stream"); }

private:
    cudaStream_t stream_ = nullptr;
};

/// Owns an event that records time.
class Event {
public:
    Event() { check(cudaEventCreate(&event_), "create an event"); }
    ~Event() {
        if (event_ != nullptr) (void)cudaEventDestroy(event_);
    }
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }
    void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "record an event"); }
    void synchronize() const { check(cudaEventSynchronize(event_), "wait for an event"); }
    /// Milliseconds from `begin` to this event; both must have been reached.
    [[nodiscard]] float milliseconds_since(const Event& begin) const {
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin.event_, event_), "time between events");
        return ms;
    }

private:
    cudaEvent_t event_ = nullptr;
};

/// Owns device memory (cudaMalloc, 256-byte aligned). Zero bytes own nothing.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
        if (bytes_ != 0) check(cudaMalloc(&data_, bytes_), "allocate " + std::to_string(bytes_) + " bytes");
    }
    ~DeviceBuffer() {
        if (data_ != nullptr) (void)cudaFree(data_);
    }
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    /// Allocates and fills from host values.
    template <typename T>
    [[nodiscard]] static DeviceBuffer of(std::span<const T> values) {
        DeviceBuffer buffer(values.size_bytes());
        buffer.upload(values);
        return buffer;
    }
    template <typename T>
    [[nodiscard]] static DeviceBuffer of(const std::vector<T>& values) {
        return of(std::span<const T>(values));
    }

    template <typename T = void>
    [[nodiscard]] T* get() const noexcept {
        return static_cast<T*>(data_);
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    template <typename T>
    void upload(std::span<const T> values) {
        static_assert(std::is_trivially_copyable_v<T>);
        if (values.size_bytes() > bytes_) throw std::out_of_range("upload larger than the device buffer");
        if (!values.empty())
            check(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice), "copy to the device");
    }
    /// Copies the first `count` values back (all of them by default).
    template <typename T>
    [[nodiscard]] std::vector<T> download(std::size_t count = SIZE_MAX) const {
        std::vector<T> values(count == SIZE_MAX ? bytes_ / sizeof(T) : count);
        if (values.size() * sizeof(T) > bytes_) throw std::out_of_range("download larger than the device buffer");
        if (!values.empty())
            check(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
                  "copy from the device");
        return values;
    }
    /// Sets every byte; 0xff makes NaN of bf16 and fp32, which shows what a kernel forgot to write.
    void fill(int byte) {
        if (bytes_ != 0) check(cudaMemset(data_, byte, bytes_), "fill device memory");
    }

private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

} // namespace moeplan::kernels
