/// moeplan recommend MODEL --device D: the smallest, the cheapest and the fastest cluster that do the job.

#include "planner/recommend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/forecast_text.hpp"
#include "cli/problem_options.hpp"
#include "cli/table.hpp"
#include "core/configs.hpp"
#include "core/error.hpp"

namespace moeplan::cli {
namespace {

constexpr int kInfeasible = 3;

struct RecommendCommand {
  std::shared_ptr<ProblemOptions> problem;
  std::vector<std::string> devices;
  std::string deadline, budget, price;
  std::int64_t most = 1024;
};

/// A positive amount; `unit` names what is counted.
double positive(const char* flag, const std::string& text, const char* unit) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !std::isfinite(value)) throw InputError(flag, shown(text) + " is not a number of " + unit, "e.g. " + std::string(flag) + " 20000");
  if (value <= 0) throw InputError(flag, fmt::format("{} {}", text, unit), "give more than 0");
  return value;
}

double duration_of(const std::string& text) {
  const std::optional<Seconds> t = parse_quantity<Seconds>(text);
  if (!t) throw InputError("--deadline", shown(text) + " is no duration", "write 7d, 12 h or 90 min");
  if (!(t->value > 0)) throw InputError("--deadline", shown(text) + " is not in the future", "give more than 0");
  return t->value;
}

std::string name_of_cluster(const ClusterSpec& c) { return fmt::format("{} x {}", c.devices(), c.device.name); }

Json option_json(const ClusterOption& o) {
  Json out = plan_json(o.best);
  out["device"] = o.cluster.device.name;
  out["gpus"] = o.cluster.devices();
  out["meets"] = o.meets;
  if (o.optimizer) out["optimizer"] = std::string(name_of(*o.optimizer));
  return out;
}

Json certificate_json(const Infeasible& no) {
  Json largest = Json::array();
  for (const auto& each : no.largest) largest.push_back({{"name", each.name}, {"bytes", each.bytes.value}});
  return {{"binding", no.binding}, {"need_bytes", no.need.value}, {"have_bytes", no.have.value}, {"largest", std::move(largest)}, {"nearest_fix", no.nearest_fix}};
}

Json recommendation_json(const Problem& problem, const Recommendation& r, const std::string& missed) {
  Json out = Json::object();
  if (r.infeasible) out["infeasible"] = certificate_json(*r.infeasible);
  else if (!missed.empty()) out["infeasible"] = {{"binding", missed}};
  out["model"] = problem.model_name;
  out["options"] = Json::array();
  for (const ClusterOption& o : r.options) out["options"].push_back(option_json(o));
  const auto index = [&](const char* name, const std::optional<std::size_t>& i) { out[name] = i ? Json(*i) : Json(nullptr); };
  index("smallest", r.smallest);
  index("cheapest", r.cheapest);
  index("fastest", r.fastest);
  out["least"] = Json::array();
  for (const LeastDevices& l : r.least)
    out["least"].push_back({{"device", l.device}, {"gpus", l.devices}, {"below", l.below ? Json(*l.below) : Json(nullptr)}, {"refused_counts", l.refused}, {"proof", l.proof ? certificate_json(*l.proof) : Json(nullptr)}});
  return out;
}

/// What was asked and what came closest to it, where no cluster does.
std::string missed_by(const Recommendation& r, const RecommendOptions& asked) {
  if (r.infeasible || r.smallest || r.options.empty()) return "";
  double soonest = std::numeric_limits<double>::infinity(), least = soonest;
  const ClusterOption *fast = nullptr, *cheap = nullptr;
  for (const ClusterOption& o : r.options) {
    const Forecast& f = o.best.forecast;
    if (f.device_hours_interval)
      if (const double t = f.device_hours_interval->high * 3600 / static_cast<double>(o.cluster.devices()); t < soonest) soonest = t, fast = &o;
    if (f.cost_interval && f.cost_interval->high < least) least = f.cost_interval->high, cheap = &o;
  }
  std::string out;
  if (asked.deadline && fast) out += fmt::format("deadline: {} asked, {} take up to {}", duration({*asked.deadline}), name_of_cluster(fast->cluster), duration({soonest}));
  if (asked.budget && cheap) out += fmt::format("{}budget: {} asked, {} cost up to {}", out.empty() ? "" : "; ", dollars(*asked.budget), name_of_cluster(cheap->cluster), dollars(least));
  if (asked.deadline && asked.budget && fast && cheap && soonest <= *asked.deadline && least <= *asked.budget) out += "; no cluster keeps both";
  return out;
}

std::string recommendation_text(const Context& context, const Problem& problem, const Recommendation& r, const std::string& missed) {
  std::string out = problem.model_name + ", " + tuning_text(problem.workload) + "\n\n";
  if (r.infeasible) {
    const Infeasible& no = *r.infeasible;
    out += heading(context, "nothing fits on any count") + "\n" + fmt::format("  {}: the closest plan needs {}, there are {}\n  what would do: {}\n", no.binding, human(no.need), human(no.have), printable(no.nearest_fix));
    return out;
  }
  const bool hours = std::any_of(r.options.begin(), r.options.end(), [](const auto& o) { return o.best.forecast.device_hours.has_value(); });
  const bool priced = std::any_of(r.options.begin(), r.options.end(), [](const auto& o) { return o.best.forecast.cost_usd.has_value(); });
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < r.options.size(); ++i) {
    const ClusterOption& o = r.options[i];
    const Forecast& f = o.best.forecast;
    std::string tags;
    const auto tag = [&](const std::optional<std::size_t>& which, const char* word) {
      if (which == i) tags += (tags.empty() ? "" : ", ") + std::string(word);
    };
    tag(r.smallest, "smallest");
    tag(r.cheapest, "cheapest");
    tag(r.fastest, "fastest");
    std::vector<std::string> row{name_of_cluster(o.cluster), layout_text(o.best.plan.parallelism) + order_text(o.best.plan) + (o.optimizer ? fmt::format(", {}", name_of(*o.optimizer)) : ""), fmt::format("{:.0f}", f.tokens_per_second), percent(f.mfu), human(f.memory_p95.peak())};
    if (hours) row.push_back(f.device_hours ? duration({*f.device_hours * 3600 / static_cast<double>(o.cluster.devices())}) : "");
    if (priced) row.push_back(f.cost_usd ? dollars(*f.cost_usd) : "");
    row.push_back(tags.empty() && !o.meets ? "misses" : tags);
    rows.push_back(std::move(row));
  }
  std::vector<Column> columns{{"cluster"}, {"layout"}, {"tokens/s", true}, {"MFU", true}, {"peak", true}};
  if (hours) columns.push_back({"time", true});
  if (priced) columns.push_back({"cost", true});
  columns.push_back({""});
  out += heading(context, "clusters, each with its best plan") + "\n" + table(columns, rows);
  if (!missed.empty()) out += wrapped("No cluster does what was asked. " + missed + ".", kWidth, 2) + "\n";
  for (const LeastDevices& l : r.least) {
    std::string why = fmt::format("Fewest {}: {}.", l.device, l.devices);
    if (l.below && l.proof) why += fmt::format(" On {} the closest of all plans needs {} of a device's {} ({} {} first); {} smaller counts were searched or hold less than the weights.", *l.below, human(l.proof->need), human(l.proof->have),
                                               l.proof->largest.front().name, human(l.proof->largest.front().bytes), l.refused);
    else if (!l.below) why += " There is no smaller count.";
    out += wrapped(why, kWidth, 2) + "\n";
  }
  return out;
}

/// Two machines, whose links say what lies between them; one where nothing does.
Problem type_of(const Context& context, ProblemRequest request, const std::string& device) {
  const NodeSpec node = load_device(context.configs, device).node;
  const bool network = !node.tiers.empty() && node.tiers.back().kind == LinkKind::network;
  request.gpus = node.devices * (network ? 2 : 1);
  return make_problem(context.configs, request);
}

Output run(const Context& context, const RecommendCommand& command) {
  if (command.devices.empty()) throw InputError("--device", "is missing", "give one or more, e.g. --device h200 --device b200");
  RecommendOptions options;
  if (!command.deadline.empty()) options.deadline = duration_of(command.deadline);
  if (!command.budget.empty()) options.budget = positive("--budget", command.budget, "dollars");
  options.most_devices = command.most;
  options.search = command.problem->search();
  options.search.threads = context.threads;
  std::vector<DeviceType> types;
  for (const std::string& device : command.devices) {
    ProblemRequest request = command.problem->request();
    request.device = device;
    request.cluster.reset();
    DeviceType type{type_of(context, std::move(request), device)};
    if (!command.price.empty()) {
      type.problem.cluster.price = DollarsPerHour{positive("--price", command.price, "dollars per device-hour")};
      type.problem.cluster.price_source = "--price";
    }
    types.push_back(std::move(type));
  }
  if (command.most < 1) throw InputError("--max-gpus", std::to_string(command.most), "give at least 1");
  const Recommendation r = recommend(types, options);
  const std::string missed = missed_by(r, options);
  Output out;
  out.exit_code = r.infeasible || !r.smallest ? kInfeasible : 0;
  const Problem& problem = types.front().problem;
  out.text = context.json ? recommendation_json(problem, r, missed).dump(2) + "\n" : recommendation_text(context, problem, r, missed);
  return out;
}

}  // namespace

Command recommend_command(CLI::App& program) {
  CLI::App* app = program.add_subcommand("recommend", "the smallest, the cheapest and the fastest cluster that do the job, and the fewest devices on which it fits");
  app->footer("Example: moeplan recommend kimi-k3 --device h200 --device b200 --tokens 1e9 --deadline 7d --budget 20000 --price 3.5");
  const auto command = std::make_shared<RecommendCommand>();
  command->problem = add_problem_options(*app);
  for (const char* name : {"--device", "--cluster", "--gpus"}) app->remove_option(app->get_option(name));
  app->add_option("--device", command->devices, "device types to choose from; may be repeated")->take_all();
  app->add_option("--deadline", command->deadline, "the job must end within, e.g. 7d");
  app->add_option("--budget", command->budget, "dollars that the job may cost");
  app->add_option("--price", command->price, "dollars per device-hour, where the device's file has none");
  app->add_option("--max-gpus", command->most, "largest cluster looked at (default 1024)")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  return {app, [command](const Context& context) { return run(context, *command); }};
}

}  // namespace moeplan::cli
