/// libFuzzer target: bytes -> config.json -> ModelSpec -> inspect. Only InputError may escape the import.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.hpp"
#include "core/json.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/inspect.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace moeplan;
  try {
    const Json config = parse_json({reinterpret_cast<const char*>(data), size}, "config.json", {.max_bytes = std::size_t{8} << 20, .tolerate_nonfinite_literals = true});
    (void)inspect(import_model(config, "config.json", "fuzzed"), size % 2 == 0);
  } catch (const InputError&) {
  }
  return 0;
}
