#include "gui/models/problem_fields.hpp"

#include <QCoreApplication>
#include <algorithm>
#include <cmath>

#include "core/show.hpp"
#include "planner/describe.hpp"
#include "planner/space.hpp"

namespace moeplan::gui {
namespace {

QString tr(const char* text) { return QCoreApplication::translate("fields", text); }
QString qs(const std::string& s) { return QString::fromStdString(s); }

template <class T>
QString shownNumber(const std::optional<T>& v) { return v ? QString::number(*v, 'g', 15) : QString(); }
template <>
QString shownNumber(const std::optional<std::int64_t>& v) { return v ? QString::number(*v) : QString(); }
template <>
QString shownNumber(const std::optional<int>& v) { return v ? QString::number(*v) : QString(); }

/// A whole or decimal number, "1e9" and "1,024" allowed.
std::optional<double> parsedNumber(QString text) {
  text.remove(QLatin1Char(',')).remove(QLatin1Char(' '));
  bool ok = false;
  const double v = text.toDouble(&ok);
  return ok && std::isfinite(v) ? std::optional(v) : std::nullopt;
}

template <class T>
FieldSpec number(const char* key, const char* group, const char* label, const char* unit, const char* why, std::optional<T> Draft::*member, double most) {
  FieldSpec f{.key = QLatin1String(key), .group = tr(group), .label = tr(label), .unit = tr(unit), .why = tr(why), .kind = FieldSpec::Kind::number, .room = {}, .choices = {}, .get = {}, .set = {}, .effective = {}, .source = {}};
  f.get = [member](const Draft& d) { return shownNumber(d.*member); };
  f.set = [member, most](Draft& d, const QString& text) {
    if (text.trimmed().isEmpty()) { (d.*member).reset(); return true; }
    const auto v = parsedNumber(text);
    if (!v || *v <= 0 || *v > most || (std::is_integral_v<T> && *v != std::floor(*v))) return false;
    d.*member = static_cast<T>(*v);
    return true;
  };
  f.source = [](const Problem&) { return QString(); };
  return f;
}

template <NamedEnum E>
FieldSpec word(const char* key, const char* group, const char* label, const char* why, std::optional<E> Draft::*member, std::vector<E> offered) {
  FieldSpec f{.key = QLatin1String(key), .group = tr(group), .label = tr(label), .unit = {}, .why = tr(why), .kind = FieldSpec::Kind::choice, .room = {}, .choices = {}, .get = {}, .set = {}, .effective = {}, .source = {}};
  for (const E e : offered) f.choices << qs(std::string(name_of(e)));
  f.get = [member](const Draft& d) { return d.*member ? qs(std::string(name_of(*(d.*member)))) : QString(); };
  f.set = [member, offered](Draft& d, const QString& text) {
    if (text.isEmpty()) { (d.*member).reset(); return true; }
    for (const E e : offered)
      if (text.toStdString() == name_of(e)) { d.*member = e; return true; }
    return false;
  };
  f.source = [](const Problem&) { return QString(); };
  return f;
}

FieldSpec named(const char* key, const char* label, const char* room, const char* why, std::function<QString(const Draft&)> get, std::function<void(Draft&, const QString&)> set) {
  FieldSpec f{.key = QLatin1String(key), .group = tr("Inputs"), .label = tr(label), .unit = {}, .why = tr(why), .kind = FieldSpec::Kind::file_or_name, .room = QLatin1String(room), .choices = {}, .get = std::move(get), .set = {}, .effective = {}, .source = {}};
  f.set = [set = std::move(set)](Draft& d, const QString& text) { set(d, text.trimmed()); return true; };
  return f;
}

std::optional<std::string> given(const QString& text) { return text.isEmpty() ? std::nullopt : std::optional(text.toStdString()); }

std::vector<FieldSpec> inputs() {
  std::vector<FieldSpec> out;
  const Draft none;
  out.push_back(named("model", "Model", "models", "A Hugging Face config.json, a directory that holds one, or a name from the library. Drop a file anywhere in the window.",
                      [](const Draft& d) { return qs(d.model); }, [](Draft& d, const QString& t) { d.model = t.isEmpty() ? Draft{}.model : t.toStdString(); }));
  out.back().effective = [](const Problem& p) { return qs(p.model_name); };
  out.back().source = [](const Problem& p) { return tr("%1, %2 layers").arg(qs(p.model.architecture)).arg(p.model.layers.size()); };
  out.push_back(named("cluster", "Cluster", "clusters", "The machines: devices, links from the inside out, price.",
                      [](const Draft& d) { return qs(d.cluster.value_or("")); },
                      [](Draft& d, const QString& t) { d.cluster = t.isEmpty() && !d.device ? Draft{}.cluster : given(t); if (d.cluster) d.device.reset(); }));
  out.back().effective = [](const Problem& p) { return qs(p.cluster.name); };
  out.back().source = [](const Problem& p) { return qs(p.cluster.source.empty() ? p.cluster.device.name : p.cluster.source); };
  out.push_back(named("device", "… or device", "devices", "Instead of a cluster: whole machines of this device; say how many devices below.",
                      [](const Draft& d) { return qs(d.device.value_or("")); },
                      [](Draft& d, const QString& t) { d.device = given(t); if (d.device) { d.cluster.reset(); if (!d.gpus) d.gpus = 8; } else if (!d.cluster) d.cluster = Draft{}.cluster, d.gpus.reset(); }));
  out.back().effective = [](const Problem& p) { return qs(p.cluster.device.name); };
  out.back().source = [](const Problem& p) { return tr("%1 usable, %2").arg(qs(human(p.cluster.device.memory)), qs(human(p.cluster.device.memory_bandwidth))); };
  out.push_back(number("gpus", "Inputs", "Devices", "devices", "How many devices; with a cluster, its size in whole machines.", &Draft::gpus, 1 << 20));
  out.back().effective = [](const Problem& p) { return qs(grouped(p.cluster.devices())); };
  out.back().source = [](const Problem& p) { return (p.cluster.nodes == 1 ? tr("%1 machine x %2") : tr("%1 machines x %2")).arg(p.cluster.nodes).arg(p.cluster.devices_per_node); };
  out.push_back(named("workload", "Workload", "workloads", "What is trained: lengths, batch, tuning per weight class, optimizer.",
                      [](const Draft& d) { return qs(d.workload); }, [](Draft& d, const QString& t) { d.workload = t.isEmpty() ? Draft{}.workload : t.toStdString(); }));
  out.back().effective = [](const Problem& p) { return qs(p.workload.name); };
  out.back().source = [](const Problem& p) { return qs(tuning_text(p.workload)); };
  out.push_back(named("load", "Expert load", "loads", "How tokens fall on experts: a distribution or recorded counts.",
                      [](const Draft& d) { return qs(d.load); }, [](Draft& d, const QString& t) { d.load = t.isEmpty() ? Draft{}.load : t.toStdString(); }));
  out.back().effective = [](const Problem& p) { return qs(p.load.name); };
  out.back().source = [](const Problem& p) { return qs(p.load.source); };
  out.push_back(named("runtime", "Runtime", "runtimes", "Who runs the plan: what it keeps in which type, what it adds in memory, what it overlaps.",
                      [](const Draft& d) { return qs(d.runtime); }, [](Draft& d, const QString& t) { d.runtime = t.isEmpty() ? Draft{}.runtime : t.toStdString(); }));
  out.back().effective = [](const Problem& p) { return qs(p.runtime.name); };
  out.back().source = [](const Problem& p) { return qs(p.runtime.source); };
  out.push_back(named("profile", "Measured times", "profiles", "Kernel times that prices rest on; by default this device's, else the H200's, scaled.",
                      [](const Draft& d) { return qs(d.profile.value_or("")); }, [](Draft& d, const QString& t) { d.profile = given(t); }));
  out.back().effective = [](const Problem& p) { return qs(p.profile.name); };
  out.back().source = [](const Problem& p) { return qs(p.profile.source); };
  return out;
}

std::vector<FieldSpec> training() {
  std::vector<FieldSpec> out;
  const auto add = [&](FieldSpec f, std::function<QString(const Problem&)> effective) {
    f.effective = std::move(effective);
    f.source = [](const Problem& p) { return tr("workload %1").arg(qs(p.workload.name)); };
    out.push_back(std::move(f));
  };
  add(number("sequence_length", "Training", "Sequence length", "tokens", "Tokens per sequence: activations and attention grow with it.", &Draft::sequence_length, 1 << 24), [](const Problem& p) { return qs(grouped(p.workload.sequence_length)); });
  add(number("global_batch", "Training", "Global batch", "sequences", "Sequences per optimizer step over the whole cluster.", &Draft::global_batch, 1 << 24),
      [](const Problem& p) { return qs(grouped(p.workload.global_batch.value_or(default_global_batch(p)))); });
  add(number("tokens", "Training", "Tokens in all", "tokens", "What GPU-hours and money are counted for.", &Draft::tokens, 1e18), [](const Problem& p) { return p.workload.tokens ? qs(short_count(*p.workload.tokens)) : tr("not given"); });
  add(word<Training>("method", "Training", "Method", "LoRA trains small pairs beside frozen weights; full trains every weight.", &Draft::method, {Training::lora, Training::full}), [](const Problem& p) { return qs(tuning_text(p.workload)); });
  add(number("rank", "Training", "LoRA rank", "", "Width of the trained pairs; alpha becomes twice as much.", &Draft::rank, 4096), [](const Problem& p) { return QString::number(p.workload.attention.rank); });
  FieldSpec targets{.key = QStringLiteral("targets"), .group = tr("Training"), .label = tr("Targets"), .unit = {}, .why = tr("Weight classes to train: attention, dense, shared, experts, router, embedding, head."),
                    .kind = FieldSpec::Kind::words, .room = {}, .choices = {}, .get = {}, .set = {}, .effective = {}, .source = {}};
  targets.choices = QStringList{QStringLiteral("attention"), QStringLiteral("dense"), QStringLiteral("shared"), QStringLiteral("experts"), QStringLiteral("router"), QStringLiteral("embedding"), QStringLiteral("head")};
  targets.get = [](const Draft& d) {
    QStringList words;
    for (const auto& t : d.targets) words << qs(t);
    return words.join(QLatin1String(","));
  };
  targets.set = [](Draft& d, const QString& text) {
    d.targets.clear();
    for (const QString& w : text.split(QLatin1Char(','), Qt::SkipEmptyParts)) d.targets.push_back(w.trimmed().toStdString());
    return true;
  };
  add(std::move(targets), [](const Problem& p) { return qs(tuning_text(p.workload)); });
  add(word<OptimizerKind>("optimizer", "Training", "Optimizer", "States per trained weight: AdamW two in fp32, 8-bit AdamW two bytes, Muon one.", &Draft::optimizer, {OptimizerKind::adamw, OptimizerKind::adamw8bit, OptimizerKind::muon}),
      [](const Problem& p) { return qs(std::string(name_of(p.workload.optimizer))); });
  add(word<DType>("frozen_storage", "Training", "Frozen weights as", "Type of frozen linear weights in memory; by default searched among what the checkpoint ships and the runtime runs.", &Draft::frozen_storage,
                  {DType::bf16, DType::fp8, DType::int8, DType::int4, DType::nf4, DType::mxfp4, DType::nvfp4}),
      [](const Problem& p) { return p.workload.frozen_storage ? qs(std::string(name_of(*p.workload.frozen_storage))) : tr("searched"); });
  return out;
}

std::vector<FieldSpec> pinned() {
  std::vector<FieldSpec> out;
  const auto add = [&](FieldSpec f) {
    f.effective = [](const Problem&) { return tr("searched"); };
    out.push_back(std::move(f));
  };
  add(number("pp", "Pinned degrees", "Pipeline stages", "stages", "Layers in stages that pass activations on.", &Draft::pp, 1 << 20));
  add(number("tp", "Pinned degrees", "Tensor parallel", "ranks", "Each block cut over ranks.", &Draft::tp, 1 << 20));
  add(number("cp", "Pinned degrees", "Context parallel", "ranks", "Each sequence cut over ranks.", &Draft::cp, 1 << 20));
  add(number("ep", "Pinned degrees", "Expert parallel", "ranks", "Experts dealt out over ranks; tokens travel to them and back.", &Draft::ep, 1 << 20));
  add(number("etp", "Pinned degrees", "Expert tensor parallel", "ranks", "Each expert cut over ranks.", &Draft::etp, 1 << 20));
  add(number("dp_replicate", "Pinned degrees", "Data replicas", "replicas", "Whole copies (HSDP).", &Draft::dp_replicate, 1 << 20));
  add(number("dp_shard", "Pinned degrees", "Data shards", "ranks", "Ranks that share one copy (FSDP).", &Draft::dp_shard, 1 << 20));
  add(number("expert_shard", "Pinned degrees", "Expert shards", "ranks", "Expert-data ranks that share one copy of the experts.", &Draft::expert_shard, 1 << 20));
  add(number("micro_batch", "Pinned degrees", "Micro-batch", "sequences", "Sequences a data rank works on at once.", &Draft::micro_batch, 1 << 24));
  add(word<Recompute>("recompute", "Pinned degrees", "Recompute", "What the backward pass computes again instead of keeping.", &Draft::recompute, {Recompute::none, Recompute::selective, Recompute::full}));
  add(word<Schedule>("schedule", "Pinned degrees", "Schedule", "In which order a stage takes the passes of its micro-batches.", &Draft::schedule,
                     {Schedule::one_forward_one_backward, Schedule::interleaved, Schedule::zero_bubble, Schedule::expert_overlap}));
  add(number("virtual_stages", "Pinned degrees", "Virtual stages", "per stage", "Chunks of layers that a pipeline stage holds.", &Draft::virtual_stages, 128));
  FieldSpec offload{.key = QStringLiteral("offload"), .group = tr("Pinned degrees"), .label = tr("On the host"), .unit = {}, .why = tr("What lives in host memory between its uses; \"auto\" searches."),
                    .kind = FieldSpec::Kind::choice, .room = {}, .choices = {}, .get = {}, .set = {}, .effective = {}, .source = {}};
  offload.choices << QStringLiteral("auto");
  for (const auto& [value, name] : EnumNames<Offload>::names) offload.choices << qs(std::string(name));
  offload.get = [](const Draft& d) { return qs(d.offload); };
  offload.set = [choices = offload.choices](Draft& d, const QString& t) {
    if (!t.isEmpty() && !choices.contains(t)) return false;
    d.offload = t.toStdString();
    return true;
  };
  out.push_back(std::move(offload));
  out.back().effective = [](const Problem&) { return tr("none"); };
  out.back().source = [](const Problem&) { return QString(); };
  add(word<ContextExchange>("context_exchange", "Pinned degrees", "Attention over contexts", "How softmax attention crosses context ranks.", &Draft::context_exchange, {ContextExchange::ring, ContextExchange::all_to_all}));
  add(word<StatePassing>("state_passing", "Pinned degrees", "States over contexts", "How the recurrent state of linear mixers crosses context ranks.", &Draft::state_passing, {StatePassing::chain, StatePassing::scan}));
  add(word<DType>("dispatch", "Pinned degrees", "Dispatch type", "Type in which tokens travel to their experts. It changes results, so it is never searched.", &Draft::dispatch, {DType::bf16, DType::fp8}));
  add(word<DispatchRoute>("route", "Pinned degrees", "Dispatch route", "Once to each node and there on to the ranks, or once to each rank.", &Draft::route, {DispatchRoute::two_hop, DispatchRoute::direct}));
  add(number("capacity_factor", "Pinned degrees", "Capacity factor", "x the mean", "Rows an expert takes at most over the mean; dropless without. It changes results, so it is never searched.", &Draft::capacity_factor, 1024));
  add(word<Overflow>("overflow", "Pinned degrees", "Beyond the capacity", "Which assignments an expert refuses.", &Draft::overflow, {Overflow::drop_probability, Overflow::drop_position, Overflow::reroute}));
  add(number("expert_replicas", "Pinned degrees", "Expert replicas", "slots", "Expert slots beyond one each, over the expert group.", &Draft::expert_replicas, 1 << 20));
  add(word<ExpertPlacement>("placement", "Pinned degrees", "Expert placement", "Where experts live: in their order, balanced by load, or balanced inside nodes.", &Draft::placement, {ExpertPlacement::contiguous, ExpertPlacement::balanced, ExpertPlacement::hierarchical}));
  add(number("expert_chunks", "Pinned degrees", "Expert chunks", "pieces", "Pieces of a micro-batch whose expert exchange runs under another piece's experts.", &Draft::expert_chunks, 64));
  return out;
}

}  // namespace

const std::vector<FieldSpec>& problemFields() {
  static const std::vector<FieldSpec> all = [] {
    std::vector<FieldSpec> out = inputs();
    for (auto* more : {&training, &pinned})
      for (FieldSpec& f : more()) out.push_back(std::move(f));
    return out;
  }();
  return all;
}

Origin originOf(const FieldSpec& field, const Draft& draft) {
  const QString now = field.get(draft);
  if (now == field.get(Draft{})) return Origin::by_default;
  if (field.kind == FieldSpec::Kind::file_or_name && (now.contains(QLatin1Char('/')) || now.endsWith(QLatin1String(".json")))) return Origin::from_file;
  return now.isEmpty() ? Origin::by_default : Origin::edited;
}

}  // namespace moeplan::gui
