#pragma once
/// The architectures that `moeplan` imports. One file per family composes a ModelSpec from config fields; `architectures.cpp` lists them.

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/spec/model.hpp"
#include "sim/program/architectures/config_reader.hpp"

namespace moeplan {

struct Architecture {
  std::string_view name;                          ///< family
  std::vector<std::string_view> answers_to;       ///< class names of `architectures` and values of `model_type`
  ModelSpec (*import)(const ConfigReader& root);  ///< throws InputError
};

[[nodiscard]] std::span<const Architecture> architectures();

/// Imports a parsed config.json; `file` is shown in messages, `name` names the model. Throws InputError for an unknown
/// architecture (listing the known ones and, where the fields are close to one, those that are foreign to it).
[[nodiscard]] ModelSpec import_model(const Json& config, const std::string& file, const std::string& name);

/// Reads a config.json, or the one in a directory (at most 8 MiB).
[[nodiscard]] ModelSpec import_model_file(const std::filesystem::path& path);

}  // namespace moeplan
