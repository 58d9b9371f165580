#include "executor/calibrate/links.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/spec/profile_keys.hpp"
#include "executor/calibrate/stage.hpp"

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

/// The collectives between two buffers, by name: memory that the transport knows beforehand where it can, as a walk's is (executor/walk/under_way.cpp).
class Collectives {
 public:
  Collectives(Communicator& world, Backend& backend, std::int64_t bytes)
      : world_(world), from_(memory(world, backend, bytes, "what is sent")), to_(memory(world, backend, bytes, "what is received")) {
    for (const Backend::Memory& m : {from_, to_}) {
      backend.clear({m.get(), DType::f32, {bytes / 4}});
      if (Registration done = world.register_memory(m, bytes); done.handle) registered_.push_back(std::move(done.handle));
    }
    backend.wait();
  }
  static constexpr std::array names{"all_gather", "reduce_scatter", "all_reduce", "dispatch", "send_receive"};
  /// `part`: elements of bf16 for each rank.
  void call(std::string_view name, std::int64_t part) const {
    const int n = world_.size();
    if (name == "all_gather") world_.all_gather(from_.get(), to_.get(), part, DType::bf16);
    if (name == "reduce_scatter") world_.reduce_scatter(from_.get(), to_.get(), part, DType::bf16);
    if (name == "all_reduce") world_.all_reduce(to_.get(), part * n, DType::bf16);
    if (name == "dispatch") {
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), part);
      world_.all_to_all(from_.get(), counts, to_.get(), counts, DType::bf16);
    }
    if (name == "send_receive") {
      const Transfer send[] = {{from_.get(), part * n, DType::bf16, (world_.rank() + 1) % n}}, receive[] = {{to_.get(), part * n, DType::bf16, (world_.rank() + n - 1) % n}};
      world_.send_receive(send, receive);
    }
  }

 private:
  static Backend::Memory memory(Communicator& world, Backend& backend, std::int64_t bytes, const char* what) {
    if (Backend::Memory known = world.shareable(bytes)) return known;
    return backend.allocate({bytes}, what);
  }
  Communicator& world_;
  Backend::Memory from_, to_;
  std::vector<std::shared_ptr<void>> registered_;
};

/// Of how many hosts the ranks are, by their names.
std::int64_t hosts_of(Communicator& world) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const auto mine = static_cast<std::int64_t>(std::hash<std::string_view>{}(name.data()) >> 1);
  const std::vector<std::int64_t> all = world.gather_words(std::span(&mine, 1));
  return static_cast<std::int64_t>(std::set(all.begin(), all.end()).size());
}

std::string link_key(std::string_view name, std::int64_t payload, std::int64_t ranks, std::int64_t hosts) {
  return fmt::format("{} payload={} ranks={}{}", name, payload, ranks, hosts > 1 ? fmt::format(" hosts={}", hosts) : "");
}

ProfileSample median_of(std::string key, std::vector<double> batches, double least) {
  std::sort(batches.begin(), batches.end());
  const double median = std::max(least, batches[batches.size() / 2]);
  return {.key = std::move(key), .median = {median}, .spread = std::min(10.0, (batches.back() - batches.front()) / 2 / median), .count = static_cast<std::int64_t>(batches.size())};
}

}  // namespace

std::vector<ProfileSample> time_links(Communicator& world, Backend& backend, const LinkOptions& options) {
  const std::int64_t n = world.size(), hosts = hosts_of(world);
  const Collectives collectives(world, backend, options.most_bytes);
  std::vector<ProfileSample> out;
  const auto measure = [&](std::string_view name, std::int64_t payload, auto call) {
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
    out.push_back(median_of(link_key(name, payload, n, hosts), std::move(batches), 0));
  };
  // What a dispatch learns first, over the host: how many rows each of some experts gets.
  const std::vector<std::int64_t> words(64, 1);
  measure("counts", 8 * static_cast<std::int64_t>(words.size()), [&] { (void)world.gather_words(words); });
  for (std::int64_t bytes = options.least_bytes; bytes <= options.most_bytes; bytes *= 4)
    if (const std::int64_t part = bytes / 2 / n; part > 0)
      for (const std::string_view name : Collectives::names) measure(name, part * 2 * n, [&] { collectives.call(name, part); });
  return out;
}

std::vector<ProfileSample> time_delays(Communicator& world, Backend& backend, const std::vector<ProfileSample>& alone, const DelayOptions& options) {
  constexpr double kLeast = 1e-9, kBesides = 2;   // s; products over calls
  const std::int64_t n = world.size(), hosts = hosts_of(world), part = options.bytes / 2 / n, payload = part * 2 * n;
  const Collectives collectives(world, backend, payload);
  const Stage product(backend, options.product);
  const auto seconds_of = [&](const std::function<void()>& work) {
    world.barrier();
    const double begin = now();
    work();
    world.wait();
    backend.wait();
    return slowest(world, now() - begin);
  };
  const auto products = [&](std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) product.perform(backend);
  };
  products(1);
  const double once = std::max(kLeast, seconds_of([&] { products(8); }) / 8);
  std::vector<ProfileSample> out;
  for (const std::string_view name : Collectives::names) {
    const auto known = std::find_if(alone.begin(), alone.end(), [&](const ProfileSample& s) { return s.key == link_key(name, payload, n, hosts); });
    if (known == alone.end()) continue;
    const std::int64_t calls = std::clamp<std::int64_t>(std::llround(options.calls.value / known->median.value), 1, 20),
                       each = std::max<std::int64_t>(1, std::llround(kBesides * known->median.value / once));
    std::vector<double> batches;
    for (int b = 0; b <= options.batches; ++b) {
      const double apart = seconds_of([&] { products(each * calls); });
      const double together = seconds_of([&] {
        for (std::int64_t i = 0; i < calls; ++i) products(each), collectives.call(name, part);
      });
      if (b > 0) batches.push_back((together - apart) / static_cast<double>(calls));
    }
    out.push_back(median_of(fmt::format("{} {}", kDelayKey, link_key(name, payload, n, hosts)), std::move(batches), kLeast));
  }
  return out;
}

std::vector<ProfileSample> time_groups(Communicator& world, Backend& backend, const LinkOptions& options, const DelayOptions& delays) {
  std::vector<ProfileSample> out;
  const auto add = [&](Communicator& group) {
    std::vector<ProfileSample> alone = time_links(group, backend, options), beside;
    if (delays.bytes > 0) beside = time_delays(group, backend, alone, delays);
    for (auto* const each : {&alone, &beside}) out.insert(out.end(), each->begin(), each->end());
  };
  for (int ranks = 2; ranks < world.size(); ranks *= 2)
    if (world.size() % ranks == 0) add(*world.split(world.rank() / ranks, world.rank(), fmt::format("of{}", ranks)));
  add(world);
  return out;
}

std::vector<LinkFit> fit_links(const std::vector<ProfileSample>& samples) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::pair<double, double>>> of;   // payload, seconds
  for (const ProfileSample& s : samples)
    if (const Key k = parts_of(s.key); k.ranks > 0 && !s.key.starts_with(kDelayKey)) of[{k.collective, k.ranks}].emplace_back(k.payload, s.median.value);
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
