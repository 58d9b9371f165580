/// Fuzz target: bytes -> plan file -> problem and plan. Only InputError may escape.

#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "core/json.hpp"
#include "planner/planner.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace moeplan;
  try {
    (void)read_plan_file(parse_json({reinterpret_cast<const char*>(data), size}, "plan.json"), "plan.json");
  } catch (const InputError&) {
  }
  return 0;
}
