#include "sim/program/host_steps.hpp"

#include <algorithm>
#include <map>

#include "sim/program/context_steps.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

}  // namespace

std::vector<std::pair<ValueId, ValueId>> move_kept(Block& block) {
  std::vector<std::pair<ValueId, ValueId>> moved;
  std::vector<ValueId> stays;
  std::vector<std::size_t> made(block.values.size(), 0);  // 1 + position of the call after which the memory is complete
  for (std::size_t i = 0; i < block.forward.size(); ++i)
    for (const ValueId w : block.forward[i].writes) made[index(block.alias[index(w)])] = i + 1;
  std::vector<std::pair<std::size_t, BlockNode>> leaving;
  std::map<ValueId, std::size_t> back;  // memory -> the copy by which it returns
  for (const ValueId v : block.kept) {
    const ValueId root = block.alias[index(v)];
    const bool carried = std::find(block.inputs.begin() + (block.inputs.empty() ? 0 : 1), block.inputs.end(), root) !=
                         block.inputs.end();
    const Bytes bytes = block.values[index(root)].bytes();
    if (bytes < kOffloaded || block.values[index(v)].always_kept || carried) {
      stays.push_back(v);
      continue;
    }
    const auto [it, fresh] = back.try_emplace(root, block.backward.size());
    if (fresh) {
      const CommCall out{.collective = Collective::to_host, .group = Group::world, .payload = bytes};
      leaving.emplace_back(made[index(root)],
                           BlockNode{.call = out, .lane = Lane::copy, .reads = {root}, .writes = {}, .weights = {}});
      const ValueId returned = add_like(block, root, block.values[index(root)].name + " (returned)");
      block.host += out.payload;
      CommCall in = out;
      in.collective = Collective::from_host;
      block.backward.push_back({.call = in, .lane = Lane::copy, .reads = {}, .writes = {returned}, .weights = {}, .operands = {root}});
    }
    std::vector<ValueId>& writes = block.backward[it->second].writes;
    const ValueId known =
        v == root ? writes.front() : add_like(block, v, block.values[index(v)].name + " (returned)", writes.front());
    if (v != root) writes.push_back(known), block.backward[it->second].operands.push_back(v);
    moved.emplace_back(v, known);
  }
  block.kept = std::move(stays);
  std::stable_sort(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [after, node] : leaving)
    block.forward.insert(block.forward.begin() + static_cast<std::ptrdiff_t>(after), std::move(node));
  return moved;
}

void order_returns(Block& block, std::size_t returns) {
  std::vector<std::size_t> first(block.values.size(), block.backward.size());
  for (std::size_t i = block.backward.size(); i-- > returns;)
    for (const ValueId r : block.backward[i].reads) first[index(block.alias[index(r)])] = i;
  const auto reader = [&](const BlockNode& n) { return first[index(block.alias[index(n.writes.front())])]; };
  std::stable_sort(block.backward.begin(), block.backward.begin() + static_cast<std::ptrdiff_t>(returns),
                   [&](const BlockNode& a, const BlockNode& b) { return reader(a) < reader(b); });
}

}  // namespace moeplan
