#include "cli/calibrate_links.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <set>

#include "cli/backends.hpp"
#include "cli/output_files.hpp"
#include "cli/run_job.hpp"
#include "cli/table.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/spec/profile_keys.hpp"
#include "core/write.hpp"
#include "executor/calibrate/links.hpp"
#include "kernels/catalogue.hpp"
#include "sim/cost/link_samples.hpp"

namespace moeplan::cli {
namespace {

constexpr Duration kLimit{60000};
/// Payload of the calls beside products: a layer's weights, or a micro-batch's rows to the experts.
constexpr std::int64_t kBeside = std::int64_t{64} << 20;

/// A product as large models have them; on a host, as it does them in some milliseconds.
op::Linear product_of(const std::string& backend) {
  return backend == "cuda" ? op::Linear{.tokens = 8192, .in = 7168, .out = 7168} : op::Linear{.tokens = 64, .in = 256, .out = 256};
}

LinkOptions sizes_of(const LinksOptions& o) {
  LinkOptions out;
  if (o.backend == "cpu") out.most_bytes = std::int64_t{1} << 24;
  if (o.most.empty()) return out;
  const std::optional<Bytes> most = parse_quantity<Bytes>(o.most);
  if (!most || most->value < out.least_bytes || most->value > std::int64_t{1} << 33)
    throw InputError("--links-most", shown(o.most) + " is no payload from 1 KiB to 8 GiB", "64 MiB");
  out.most_bytes = most->value;
  return out;
}

Output write_profile(const Context& context, const LinksOptions& o, const OpenBackend& opened, std::vector<ProfileSample> samples) {
  OutputFiles files({o.output});
  DeviceProfile profile{.name = o.name, .driver = calibration_origin(opened.device, MOEPLAN_VERSION, o.backend), .date = fmt::format("{:%F}", fmt::gmtime(std::time(nullptr))), .source = "",
                        .device = load_device(context.configs, o.device_name(opened.device)).device, .samples = {}};
  if (!o.again && std::filesystem::exists(o.output)) {
    const DeviceProfile before = load_profile(context.configs, o.output);
    if (before.driver != profile.driver || !(before.device == profile.device))
      throw InputError(o.output, fmt::format("was measured on {} ({}), this is {} ({})", before.driver, before.device.name, profile.driver, profile.device.name), "another -o, or --again to begin anew");
    profile.samples = before.samples;
    profile.source = before.source + "; ";
  }
  // Of what was measured now all that was known before goes, other payloads and delays too: they are of one machine, as it is now.
  const auto measured_as = [](std::string key) {
    if (key.starts_with(std::string(kDelayKey) + ' ')) key.erase(0, kDelayKey.size() + 1);
    const auto payload = key.find(" payload="), ranks = key.find(" ranks=");
    return payload == std::string::npos || ranks == std::string::npos ? std::string{} : key.substr(0, payload) + key.substr(ranks);
  };
  std::set<std::string> now;
  for (const ProfileSample& s : samples) now.insert(measured_as(s.key));
  std::erase_if(profile.samples, [&](const ProfileSample& old) { return now.contains(measured_as(old.key)); });
  profile.samples.insert(profile.samples.end(), samples.begin(), samples.end());
  std::sort(profile.samples.begin(), profile.samples.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  profile.source += fmt::format("moeplan calibrate --links {}, groups of neighbours at once: the slowest rank's medians of {} batches, from the call to its end; delays of {} beside one", o.ranks, samples.front().count, key(product_of(o.backend), Pass::forward, {}));
  files.write(o.output, to_json(profile).dump(1) + "\n");
  files.done();
  Output out;
  out.notes.push_back(fmt::format("{}: {} samples, {} of links", o.output, profile.samples.size(), samples.size()));
  std::vector<std::vector<std::string>> rows;
  Json fits = Json::array();
  for (const LinkFit& f : fit_links(samples)) {
    rows.push_back({f.collective, std::to_string(f.ranks), duration({f.latency}), fmt::format("{:.1f} GB/s", f.rate / 1e9), percent(f.worst)});
    fits.push_back({{"collective", f.collective}, {"ranks", f.ranks}, {"latency_s", f.latency}, {"payload_bytes_per_s", f.rate}, {"worst_error", f.worst}});
  }
  const LinkSamples measured(profile);
  std::vector<std::vector<std::string>> beside;
  Json costs = Json::array();
  for (const LinkSamples::Share& s : measured.shares()) {
    beside.push_back({s.collective, std::to_string(s.ranks), percent(s.share)});
    costs.push_back({{"collective", s.collective}, {"ranks", s.ranks}, {"of_computing", s.share}});
  }
  if (context.json) {
    out.text = Json{{"profile", o.output}, {"samples", profile.samples.size()}, {"links", fits}, {"beside", costs}}.dump(2) + "\n";
    return out;
  }
  out.text = heading(context, fmt::format("{} ranks on {}: seconds = latency + payload / rate", o.ranks, opened.device)) + "\n" +
             table({{"collective"}, {"ranks", true}, {"latency", true}, {"rate", true}, {"worst error", true}}, rows) + "\n" +
             heading(context, "what computing beside a call loses while it runs") + "\n" + table({{"collective"}, {"ranks", true}, {"share", true}}, beside);
  return out;
}

}  // namespace

Output calibrate_links(const Context& context, const LinksOptions& o) {
  if (o.backend == "null") throw InputError("--links", "the null backend moves nothing", "--backend cpu or cuda");
  const LinkOptions sizes = sizes_of(o);
  std::optional<int> ended;
  const std::optional<Job> job = find_job(o.ranks, true, {}, std::nullopt, ended);
  if (ended) return {{}, {}, *ended};
  if (!job) throw InputError("--links", "one rank has none to measure", "--links 2");
  std::optional<OpenBackend> current;   // the device on which the world is opened
  const Transport transport = transport_of(o.backend, [&] { current = open_backend(o.backend, false, job->place.local_rank); });
  return run_job(*job, kLimit, kStalled, transport, {}, [&](Communicator& world, Progress& progress) {
    progress.set_stall(Duration{0});
    const OpenBackend opened = open_backend(o.backend, false, job->place.local_rank);   // which leaves another one current
    std::int64_t payload = sizes.least_bytes;
    while (4 * payload <= std::min(kBeside, sizes.most_bytes)) payload *= 4;
    std::vector<ProfileSample> samples = time_groups(world, *opened.backend, sizes, {.product = {product_of(o.backend), Pass::forward, {}}, .bytes = payload});
    return world.rank() == 0 ? write_profile(context, o, opened, std::move(samples)) : Output{};
  });
}

}  // namespace moeplan::cli
