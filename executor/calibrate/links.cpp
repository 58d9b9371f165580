#include "executor/calibrate/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

namespace moeplan {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double slowest(Communicator& world, double seconds) {
  const auto mine = static_cast<std::int64_t>(seconds * 1e12);
  const std::vector<std::int64_t> all = world.gather_words(std::span(&mine, 1));
  return static_cast<double>(*std::max_element(all.begin(), all.end())) * 1e-12;
}

/// "all_gather payload=1048576 ranks=2" in parts; ranks 0 if it is no such key.
struct Key {
  std::string collective;
  double payload = 0;
  std::int64_t ranks = 0;
};
Key parts_of(const std::string& key) {
  const auto payload = key.find(" payload="), ranks = key.find(" ranks=");
  if (payload == std::string::npos || ranks == std::string::npos) return {};
  return {key.substr(0, payload), std::atof(key.c_str() + payload + 9), std::atoll(key.c_str() + ranks + 7)};
}

}  // namespace

std::vector<ProfileSample> time_links(Communicator& world, Backend& backend, const LinkOptions& options) {
  const std::int64_t n = world.size();
  const Backend::Memory from = backend.allocate({options.most_bytes}, "what is sent"), to = backend.allocate({options.most_bytes}, "what is received");
  backend.clear({from.get(), DType::f32, {options.most_bytes / 4}});
  backend.clear({to.get(), DType::f32, {options.most_bytes / 4}});
  backend.wait();
  std::vector<ProfileSample> out;
  const auto measure = [&](const char* name, std::int64_t payload, auto call) {
    const int repeats = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / payload, 1, 20));
    std::vector<double> batches;
    for (int b = 0; b <= options.batches; ++b) {
      world.barrier();
      const double begin = now();
      for (int i = 0; i < repeats; ++i) call();
      world.wait();
      const double each = slowest(world, (now() - begin) / repeats);
      if (b > 0) batches.push_back(each);   // the first makes connections
    }
    std::sort(batches.begin(), batches.end());
    const double median = batches[batches.size() / 2];
    out.push_back({.key = fmt::format("{} payload={} ranks={}", name, payload, n), .median = {median}, .spread = std::min(10.0, (batches.back() - batches.front()) / 2 / median), .count = options.batches});
  };
  // What a dispatch learns first, over the host: how many rows each of some experts gets.
  const std::vector<std::int64_t> words(64, 1);
  measure("counts", 8 * static_cast<std::int64_t>(words.size()), [&] { (void)world.gather_words(words); });
  for (std::int64_t bytes = options.least_bytes; bytes <= options.most_bytes; bytes *= 4) {
    const std::int64_t part = bytes / 2 / n, payload = part * 2 * n;
    if (part == 0) continue;
    measure("all_gather", payload, [&] { world.all_gather(from.get(), to.get(), part, DType::bf16); });
    measure("reduce_scatter", payload, [&] { world.reduce_scatter(from.get(), to.get(), part, DType::bf16); });
    measure("all_reduce", payload, [&] { world.all_reduce(to.get(), part * n, DType::bf16); });
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), part);
    measure("dispatch", payload, [&] { world.all_to_all(from.get(), counts, to.get(), counts, DType::bf16); });
    const auto right = static_cast<int>((world.rank() + 1) % n), left = static_cast<int>((world.rank() + n - 1) % n);
    const Transfer send[] = {{from.get(), part * n, DType::bf16, right}}, receive[] = {{to.get(), part * n, DType::bf16, left}};
    measure("send_receive", payload, [&] { world.send_receive(send, receive); });
  }
  return out;
}

std::vector<LinkFit> fit_links(const std::vector<ProfileSample>& samples) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::pair<double, double>>> of;   // payload, seconds
  for (const ProfileSample& s : samples)
    if (const Key k = parts_of(s.key); k.ranks > 0) of[{k.collective, k.ranks}].emplace_back(k.payload, s.median.value);
  std::vector<LinkFit> out;
  for (const auto& [key, points] : of) {
    if (points.size() < 2) continue;
    // Each equation divided by its seconds: (1/t) latency + (b/t) (1/rate) = 1.
    double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
    for (const auto& [bytes, t] : points) aa += 1 / (t * t), ab += bytes / (t * t), bb += bytes * bytes / (t * t), a += 1 / t, b += bytes / t;
    const double determinant = aa * bb - ab * ab;
    if (!(determinant > 0 && aa * b - ab * a > 0)) continue;   // noise that no latency and rate explain
    LinkFit fit{key.first, key.second, (a * bb - b * ab) / determinant, determinant / (aa * b - ab * a), 0};
    for (const auto& [bytes, t] : points) fit.worst = std::max(fit.worst, std::abs((fit.latency + bytes / fit.rate) / t - 1));
    out.push_back(std::move(fit));
  }
  return out;
}

}  // namespace moeplan
