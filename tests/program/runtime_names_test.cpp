#include "sim/program/runtime_names.hpp"

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";

TEST(RuntimeNames, OfEveryRuntimeThatShipsAreKnown) {
  for (const std::string& name : config_names(kConfigs, "runtimes")) EXPECT_NO_THROW(check_names(load_runtime(kConfigs, name))) << name;
}

TEST(RuntimeNames, AMisspeltOneIsRefusedWithTheNearest) {
  Runtime runtime;
  runtime.name = "mine";
  runtime.traffic["rms_nrom"] = 3;
  try {
    check_names(runtime);
    FAIL();
  } catch (const InputError& e) {
    const std::string said = e.what();
    EXPECT_NE(said.find("runtime mine: traffic"), std::string::npos) << said;
    EXPECT_NE(said.find("\"rms_nrom\""), std::string::npos) << said;
    EXPECT_NE(said.find("\"rms_norm\""), std::string::npos) << said;
  }
}

TEST(RuntimeNames, WhatIsKeptHasNamesOfItsOwn) {
  Runtime runtime;
  runtime.kept["stand_in_gradient"] = 2;
  EXPECT_NO_THROW(check_names(runtime));
  runtime.kept["gradient_sum"] = 6;   // of traffic
  EXPECT_THROW(check_names(runtime), InputError);
}

}  // namespace
}  // namespace moeplan
