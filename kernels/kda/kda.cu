/// \file
/// The host side: how a call is cut into head groups and segments, where its scratch lies, and which kernels it queues.
#include "kernels/kda/launch.hpp"

#include <algorithm>

namespace moeplan::kernels::kda {
namespace {

constexpr std::int64_t whole_sequence = std::int64_t{1} << 30;

void require(bool condition, const std::string& message) {
  if (!condition) throw UnsupportedShape("kda: " + message);
}

void require_contract(const Dims& dims) {
  require(dims.head_dim == 64 || dims.head_dim == 128,
          "head_dim=" + std::to_string(dims.head_dim) + "; kernels exist for 64 and 128");
  require(dims.heads >= 1 && dims.heads <= 128, "heads=" + std::to_string(dims.heads) + "; 1 to 128 are supported");
  require(dims.tokens >= 0 && dims.sequences >= 1,
          "tokens=" + std::to_string(dims.tokens) + " sequences=" + std::to_string(dims.sequences));
  require((dims.tokens + 63 * dims.sequences) / 64 * dims.heads < (std::int64_t{1} << 31) &&
              dims.sequences * dims.heads * 8 < (std::int64_t{1} << 31),
          "more than 2^31 blocks; split the batch");
}

/// How a call is cut, and the byte offsets of its scratch.
struct Cut {
  int max_chunks, max_segments, group_heads;
  std::int64_t segment_chunks, record_bytes;
  bool segmented;
  std::size_t chunks, segments, chunk_offsets, segment_offsets, records, states, d_states, d_n, partials, maps, ends,
      begins, d_begins, total;
};

std::int64_t segment_length(const Dims& dims, const Options& options, std::int64_t max_chunks) {
  if (options.segment_chunks > 0) return std::min(options.segment_chunks, whole_sequence);
  // Scans with fewer warpgroups than the card has multiprocessors are cut; the affine pass triples their work, so
  // that it pays only where at least six segments can run beside each other.
  const std::int64_t items = dims.sequences * dims.heads * (dims.head_dim / 64), cuts = 132 / items;
  const std::int64_t chunks = max_chunks / dims.sequences;
  if (cuts < 6 || chunks < 48) return whole_sequence;
  return std::max<std::int64_t>(8, (chunks + cuts - 1) / cuts);
}

Cut cut(const Dims& dims, const Options& options, Pass pass) {
  require_contract(dims);
  const bool backward = pass == Pass::backward;
  Cut c{};
  const std::int64_t d = dims.head_dim, most = (dims.tokens + 63 * dims.sequences) / 64;
  c.max_chunks = static_cast<int>(std::max<std::int64_t>(most, 1));
  c.segment_chunks = segment_length(dims, options, c.max_chunks);
  c.segmented = c.segment_chunks < c.max_chunks;
  c.max_segments = static_cast<int>(dims.sequences + (c.segmented ? c.max_chunks / c.segment_chunks : 0));
  c.record_bytes = d == 128 ? (backward ? Record<128>::backward_bytes : Record<128>::forward_bytes)
                            : (backward ? Record<64>::backward_bytes : Record<64>::forward_bytes);
  const auto lay_out = [&](std::int64_t heads) {
    std::size_t at = 0;
    const auto take = [&](std::int64_t bytes) {
      const std::size_t here = at;
      at += (static_cast<std::size_t>(bytes) + 1023) / 1024 * 1024;
      return here;
    };
    c.chunks = take(std::int64_t{c.max_chunks} * std::int64_t{sizeof(Chunk)});
    c.segments = take(std::int64_t{c.max_segments} * std::int64_t{sizeof(Segment)});
    c.chunk_offsets = take((dims.sequences + 1) * 4);
    c.segment_offsets = take((dims.sequences + 1) * 4);
    const std::int64_t tiles = c.max_chunks * heads, states = c.segmented ? c.max_segments * heads * d * d * 4 : 0;
    c.records = take(tiles * c.record_bytes);
    c.maps = take(states);
    c.ends = take(states);
    c.begins = take(states);
    if (backward) {
      c.states = take(tiles * 2 * d * d);
      c.d_states = take(tiles * 2 * d * d);
      c.d_n = take(tiles * 128 * d);
      c.partials = take(tiles * 2 * d * 4);
      c.d_begins = take(states);
    }
    return at;
  };
  int groups = 1;
  do {
    c.group_heads = (dims.heads + groups - 1) / groups;
    c.total = lay_out(c.group_heads);
    ++groups;
  } while (options.workspace_limit != 0 && c.total > options.workspace_limit && groups <= dims.heads);
  return c;
}

Launch make_launch(const Forward& call, const Cut& c) {
  auto* base = static_cast<char*>(call.workspace);
  Launch launch{};
  launch.q = call.q, launch.k = call.k, launch.v = call.v, launch.gate = call.gate;
  launch.beta = call.beta, launch.a_log = call.a_log, launch.dt_bias = call.dt_bias;
  launch.out = call.out;
  launch.heads = call.dims.heads;
  launch.scale = call.scale != 0.0f ? call.scale : (call.dims.head_dim == 128 ? 0.08838834764831845f : 0.125f);
  launch.lower_bound = call.gate_form.form == GateForm::bounded ? call.gate_form.lower_bound : 0.0f;
  launch.chunks = reinterpret_cast<Chunk*>(base + c.chunks);
  launch.segments = reinterpret_cast<Segment*>(base + c.segments);
  launch.chunk_offsets = reinterpret_cast<int*>(base + c.chunk_offsets);
  launch.segment_offsets = reinterpret_cast<int*>(base + c.segment_offsets);
  launch.max_chunks = c.max_chunks, launch.max_segments = c.max_segments;
  launch.records = base + c.records;
  launch.record_bytes = c.record_bytes;
  return launch;
}

void require_inputs(const Forward& call) {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
  require(major == 9 && minor == 0, "compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                                        "; the kernels are built for 9.0, other devices take the reference");
  require(call.q && call.k && call.v && call.gate && call.beta && call.a_log, "an input pointer is null");
  require(call.workspace != nullptr && reinterpret_cast<std::uintptr_t>(call.workspace) % 256 == 0,
          "the workspace must be 256-byte aligned");
  const float bound = call.gate_form.lower_bound;
  require(call.gate_form.form == GateForm::softplus || (bound >= -5.0f && bound < 0.0f),
          "lower_bound=" + std::to_string(bound) + "; the bounded gate takes [-5, 0)");
  require(call.cu_seqlens != nullptr || call.dims.tokens % call.dims.sequences == 0,
          "tokens do not divide into equal sequences; give cu_seqlens");
}

void tables_of(const Launch& launch, const Forward& call, const Cut& c, cudaStream_t stream) {
  make_tables({.chunks = const_cast<Chunk*>(launch.chunks),
               .segments = const_cast<Segment*>(launch.segments),
               .chunk_offsets = const_cast<int*>(launch.chunk_offsets),
               .segment_offsets = const_cast<int*>(launch.segment_offsets)},
              call.cu_seqlens, call.dims, c.segment_chunks, c.max_chunks, c.max_segments, stream);
}

struct SegmentStates {
  float *maps, *ends, *begins, *d_begins;
};
SegmentStates segment_states(const Forward& call, const Cut& c) {
  auto* base = static_cast<char*>(call.workspace);
  return {reinterpret_cast<float*>(base + c.maps), reinterpret_cast<float*>(base + c.ends),
          reinterpret_cast<float*>(base + c.begins), reinterpret_cast<float*>(base + c.d_begins)};
}

/// What the forward scan starts from: the initial states, or those before every segment, computed here.
ScanStates states_before(const Launch& launch, const Forward& call, const Cut& c, cudaStream_t stream) {
  if (!c.segmented) return {.begin = call.initial_state, .by_sequence_in = true};
  const auto s = segment_states(call, c);
  scan_forward(launch, call.dims.head_dim, ScanKind::affine, {.end = s.ends, .map = s.maps}, stream);
  join_segments(launch, call.dims.head_dim, false, s.maps, s.ends, call.initial_state, s.begins, call.dims.sequences,
                stream);
  return {.begin = s.begins};
}

}  // namespace

std::size_t workspace_bytes(const Dims& dims, const Options& options, Pass pass) {
  return cut(dims, options, pass).total;
}

void forward(const Forward& call, StreamHandle stream) {
  const Cut c = cut(call.dims, call.options, Pass::forward);
  require_inputs(call);
  require(call.out != nullptr, "out is null");
  Launch launch = make_launch(call, c);
  tables_of(launch, call, c, stream);
  for (int head = 0; head < call.dims.heads; head += c.group_heads) {
    launch.first_head = head;
    launch.group_heads = std::min(c.group_heads, call.dims.heads - head);
    prepare(launch, call.dims.head_dim, false, stream);
    ScanStates states = states_before(launch, call, c, stream);
    states.end = call.final_state, states.by_sequence_out = true;
    scan_forward(launch, call.dims.head_dim, ScanKind::output, states, stream);
  }
}

void backward(const Backward& call, StreamHandle stream) {
  const Forward& in = call.forward;
  const Cut c = cut(in.dims, in.options, Pass::backward);
  require_inputs(in);
  require(call.d_out != nullptr, "the output's gradient is null");
  auto* base = static_cast<char*>(in.workspace);
  const int d = in.dims.head_dim;
  Launch launch = make_launch(in, c);
  launch.d_out = call.d_out;
  launch.d_q = call.d_q, launch.d_k = call.d_k, launch.d_v = call.d_v, launch.d_gate = call.d_gate,
  launch.d_beta = call.d_beta;
  launch.states = base + c.states, launch.d_states = base + c.d_states, launch.d_n = base + c.d_n;
  launch.parameter_partials = reinterpret_cast<float*>(base + c.partials);
  tables_of(launch, in, c, stream);
  for (int head = 0; head < in.dims.heads; head += c.group_heads) {
    launch.first_head = head;
    launch.group_heads = std::min(c.group_heads, in.dims.heads - head);
    prepare(launch, d, true, stream);
    const ScanStates before = states_before(launch, in, c, stream);
    ScanStates states{.begin = call.d_final_state, .by_sequence_in = true};
    if (c.segmented) {
      const auto s = segment_states(in, c);  // the maps of the forward, transposed, carry the gradient back
      scan_reverse(launch, d, {.end = s.ends}, stream);
      join_segments(launch, d, true, s.maps, s.ends, call.d_final_state, s.d_begins, in.dims.sequences, stream);
      states = {.begin = s.d_begins};
    }
    states.end = call.d_initial_state, states.by_sequence_out = true;
    scan_both_ways(launch, d, before, states, stream);
    backward_chunks(launch, d, stream);
    reduce_parameters(launch, d, call.d_a_log, call.d_dt_bias, stream);
  }
}

}  // namespace moeplan::kernels::kda
