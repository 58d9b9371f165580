/// \file
/// The host side: which kernels a call queues, part by part (scratch.hpp has the parts and where the scratch lies).
#include <algorithm>

#include "kernels/kda/launch.hpp"
#include "kernels/kda/scratch.hpp"

namespace moeplan::kernels::kda {
namespace {

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

static_assert(sizeof(Chunk) == 16 && sizeof(Segment) == 16, "scratch.hpp counts 16 bytes each");
template <int D>
constexpr std::int64_t counted(Pass pass) {
  return cut_of({.tokens = 64, .heads = 1, .head_dim = D}, {}, pass).record_bytes;
}
static_assert(counted<64>(Pass::forward) == Record<64>::forward_bytes);
static_assert(counted<64>(Pass::backward) == Record<64>::backward_bytes);
static_assert(counted<128>(Pass::forward) == Record<128>::forward_bytes);
static_assert(counted<128>(Pass::backward) == Record<128>::backward_bytes);

Cut cut(const Dims& dims, const Options& options, Pass pass) {
  require_contract(dims);
  return cut_of(dims, options, pass);
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
  launch.max_chunks = static_cast<int>(c.max_chunks), launch.max_segments = static_cast<int>(c.max_segments);
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
              call.cu_seqlens, call.dims, c.segment_chunks, launch.max_chunks, launch.max_segments, stream);
}

void take_group(Launch& launch, const Cut& c, std::int64_t group) {
  launch.first_head = c.first(group, launch.heads);
  launch.group_heads = c.first(group + 1, launch.heads) - launch.first_head;
}

/// The chunks of a slab alone, and what its scan walks of each sequence.
void take_slab(Launch& launch, const Forward& call, const Cut& c, std::int64_t slab, cudaStream_t stream) {
  const std::int64_t first = slab * c.slab_chunks;
  auto* segments = reinterpret_cast<Segment*>(static_cast<char*>(call.workspace) + c.slab_segments);
  launch.max_chunks = static_cast<int>(std::clamp<std::int64_t>(c.max_chunks - first, 0, c.slab_chunks));
  clip_segments(launch.segments, segments, launch.max_segments, static_cast<int>(first), launch.max_chunks, stream);
  launch.chunks += first, launch.segments = segments;
}

/// States between slabs: two buffers, for where one sequence ends that came in another may go out.
void carry(ScanStates& states, const Forward& call, const Cut& c, std::int64_t slab) {
  auto* buffers = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + c.carried);
  const std::int64_t d = call.dims.head_dim, size = c.group_heads * d * d;
  states.carried_in = buffers + slab % 2 * size, states.carried_out = buffers + (slab + 1) % 2 * size;
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
  return static_cast<std::size_t>(cut(dims, options, pass).total);
}

void forward(const Forward& call, StreamHandle stream) {
  const Cut c = cut(call.dims, call.options, Pass::forward);
  require_inputs(call);
  require(call.out != nullptr, "out is null");
  Launch launch = make_launch(call, c);
  tables_of(launch, call, c, stream);
  for (std::int64_t group = 0; group < c.groups; ++group) {
    take_group(launch, c, group);
    for (std::int64_t slab = 0; slab < c.slabs; ++slab) {
      Launch part = launch;
      if (c.slabs > 1) take_slab(part, call, c, slab, stream);
      if (part.max_chunks == 0) break;
      prepare(part, call.dims.head_dim, false, stream);
      ScanStates states = states_before(part, call, c, stream);
      states.end = call.final_state, states.by_sequence_out = true;
      if (c.slabs > 1) carry(states, call, c, slab);
      scan_forward(part, call.dims.head_dim, ScanKind::output, states, stream);
    }
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
  for (std::int64_t group = 0; group < c.groups; ++group) {
    take_group(launch, c, group);
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
