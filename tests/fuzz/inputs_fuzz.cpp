/// Fuzz target: bytes as each kind of input file (cluster, device, workload, load, runtime, profile), read by its field list and
/// checked across fields. What is accepted must be written and read back to the same value. Only InputError may escape.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/configs.hpp"
#include "core/write.hpp"

namespace {

template <class T>
void read_as(const moeplan::Json& json) {
  using namespace moeplan;
  try {
    const T value = read_document<T>(json, "f.json");
    if constexpr (requires { check(value, "f.json"); }) check(value, "f.json");
    if (read_document<T>(to_json(value), "again.json") != value) std::abort();
  } catch (const InputError& e) {
    if (std::string(e.what()).find('\n') != std::string::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace moeplan;
  Json json;
  try {
    json = parse_json({reinterpret_cast<const char*>(data), size}, "f.json");
  } catch (const InputError&) {
    return 0;
  }
  read_as<ClusterSpec>(json);
  read_as<DeviceEntry>(json);
  read_as<Workload>(json);
  read_as<LoadModel>(json);
  read_as<Runtime>(json);
  read_as<DeviceProfile>(json);
  return 0;
}
