#pragma once
/// Finding and reading what a problem is made of. A name ("128xh200") means configs/<room>/**/<name>.json; anything with a slash or
/// ending in .json is a file. All checks of single fields and between fields happen here; every refusal is one InputError line.
///
/// A cluster file may name its device ("device": "h200"); then whatever it leaves out comes from the machine in
/// configs/devices. A profile names the device it was measured on the same way.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/spec/cluster.hpp"
#include "core/spec/load.hpp"
#include "core/spec/profile.hpp"
#include "core/spec/runtime.hpp"
#include "core/spec/workload.hpp"

namespace moeplan {

/// Names in configs/<room> ("clusters", "devices", "loads", "models", "profiles", "runtimes", "workloads"), sorted.
[[nodiscard]] std::vector<std::string> config_names(const std::filesystem::path& configs, std::string_view room);

/// Path of the file that `name_or_path` means. A name that is not there is refused with the nearest name and the list.
[[nodiscard]] std::filesystem::path find_config(const std::filesystem::path& configs, std::string_view room, const std::string& name_or_path);

[[nodiscard]] DeviceEntry load_device(const std::filesystem::path& configs, const std::string& name_or_path);
[[nodiscard]] ClusterSpec load_cluster(const std::filesystem::path& configs, const std::string& name_or_path);
[[nodiscard]] Workload load_workload(const std::filesystem::path& configs, const std::string& name_or_path);
[[nodiscard]] LoadModel load_load(const std::filesystem::path& configs, const std::string& name_or_path);
[[nodiscard]] Runtime load_runtime(const std::filesystem::path& configs, const std::string& name_or_path);
[[nodiscard]] DeviceProfile load_profile(const std::filesystem::path& configs, const std::string& name_or_path);

/// `gpus` devices in whole machines of `entry`, or a part of one machine. Throws InputError for a count that is neither.
[[nodiscard]] ClusterSpec cluster_of(const DeviceEntry& entry, std::int64_t gpus);
/// Same with another count, keeping links, price and device of `cluster` (for --gpus).
[[nodiscard]] ClusterSpec resized(const ClusterSpec& cluster, std::int64_t gpus);

/// What reading field by field cannot see; `where` is the file or flag to blame. Also for values that flags changed.
void check(const DeviceSpec& device, const std::string& where);
void check(const ClusterSpec& cluster, const std::string& where);
void check(const Workload& workload, const std::string& where);
void check(const LoadModel& load, const std::string& where);
void check(const Runtime& runtime, const std::string& where);
void check(const DeviceProfile& profile, const std::string& where);

}  // namespace moeplan
