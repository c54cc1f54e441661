#include "executor/collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/reduce.h"
#include "transport/engine.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

// A request's token: the place in the window, and the op.
constexpr int kOpBits = 24;

uint32_t make_token(uint32_t place, uint32_t op) {
  return place << kOpBits | op;
}
uint32_t place_of(uint32_t token) {
  return token >> kOpBits;
}
uint32_t op_of(uint32_t token) {
  return token & ((uint32_t{1} << kOpBits) - 1);
}

bool reduces(Collective op) {
  return op == Collective::kAllReduce || op == Collective::kReduce ||
         op == Collective::kReduceScatter;
}

size_t longest(const std::vector<Region>& regions) {
  size_t bytes = 0;
  for (const Region& region : regions) {
    bytes = std::max(bytes, region.bytes);
  }
  return bytes;
}

CallShape shape_of(const CollectiveCall& call) {
  CallShape shape;
  shape.collective = call.collective;
  shape.root = call.root;
  shape.bytes =
      call.uneven ? CallShape::kUneven : std::max(longest(call.input), longest(call.output));
  shape.wide_accumulation = reduces(call.collective) && accumulates_wider(call.dtype);
  return shape;
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ hash >> 33;
}

}  // namespace

CollectiveTask::CollectiveTask(std::shared_ptr<Group> group, Planner& planner, CollectiveCall call,
                               std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout)
    : Task(std::move(group), timeout),
      call_(std::move(call)),
      keep_alive_(std::move(keep_alive)),
      choice_(planner.choose(shape_of(call_))) {
  if (reduces(call_.collective)) {
    check_reducible(call_.dtype, call_.reduce, call_.divisor);
  }
  const size_t bytes = std::max(longest(call_.input), longest(call_.output));
  num_slices_ = (bytes + choice_.slice_bytes - 1) / choice_.slice_bytes;
  fingerprint_ = fingerprint();
}

CollectiveTask::~CollectiveTask() {
  // Only after an error: the pool wants the engine's lock, which is not held here.
  for (const Place& place : places_) {
    ScratchPool::destroy(place.scratch);
  }
}

std::string CollectiveTask::name() const {
  size_t bytes = 0;
  for (const Region& region : call_.input.empty() ? call_.output : call_.input) {
    bytes += region.bytes;
  }
  std::string text = call_.title.empty() ? to_string(call_.collective) : call_.title;
  text += " (sequence " + std::to_string(sequence());
  if (call_.collective != Collective::kBarrier) {
    text += ", " + std::to_string(bytes) + " bytes";
  }
  if (reduces(call_.collective)) {
    text += std::string(" of ") + to_string(call_.dtype) + ", " + to_string(call_.reduce);
  }
  if (call_.root >= 0) {
    text += ", root " + std::to_string(call_.root);
  }
  return text + ") on rank " + std::to_string(group().rank()) + " of " +
         std::to_string(group().world_size()) + " in group '" + group().name() + "'";
}

// What all ranks must agree on. Uneven parts are known to a pair of ranks only.
uint64_t CollectiveTask::fingerprint() const {
  uint64_t hash = static_cast<uint64_t>(call_.collective);
  hash = mix(hash, static_cast<uint64_t>(call_.root + 1));
  hash = mix(hash, call_.uneven ? 1 : std::max(longest(call_.input), longest(call_.output)));
  if (reduces(call_.collective)) {
    hash = mix(hash, static_cast<uint64_t>(call_.dtype) << 32 |
                         static_cast<uint64_t>(call_.reduce) << 24 |
                         static_cast<uint64_t>(call_.divisor));
  }
  for (const char c : choice_.plan->algorithm) {
    hash = mix(hash, static_cast<uint64_t>(c));
  }
  hash = mix(hash, choice_.slice_bytes);
  return hash;
}

void CollectiveTask::start() {
  if (num_slices_ == 0 || choice_.plan->ops.empty()) {
    finish();
    return;
  }
  places_.resize(std::min(static_cast<size_t>(choice_.window), num_slices_));
  for (Place& place : places_) {
    place.dependencies_left.resize(choice_.plan->ops.size());
    if (choice_.plan->num_scratch > 0) {
      place.scratch =
          group().engine().scratch().take(choice_.plan->num_scratch * choice_.part_bytes);
    }
  }
  for (uint32_t place = 0; place < places_.size(); ++place) {
    start_slice(place);
  }
  run_ready();
}

void CollectiveTask::start_slice(uint32_t place_index) {
  Place& place = places_[place_index];
  place.slice = next_slice_++;
  const std::vector<Op>& ops = choice_.plan->ops;
  place.ops_left = static_cast<uint32_t>(ops.size());
  for (uint32_t i = 0; i < ops.size(); ++i) {
    place.dependencies_left[i] = ops[i].num_dependencies;
    if (ops[i].num_dependencies == 0) {
      ready_.emplace_back(place_index, i);
    }
  }
}

void CollectiveTask::run_ready() {
  // Ops that complete at once make others ready: a work list, not recursion.
  if (running_ready_) {
    return;
  }
  running_ready_ = true;
  for (size_t i = 0; i < ready_.size() && !done(); ++i) {
    const auto [place, op] = ready_[i];
    run(place, op);
  }
  ready_.clear();
  running_ready_ = false;
}

void CollectiveTask::run(uint32_t place_index, uint32_t op_index) {
  Place& place = places_[place_index];
  const Plan& plan = *choice_.plan;
  const Op& op = plan.ops[op_index];
  const size_t length = part(op.length_of, place.slice).bytes;
  if (length == 0) {
    complete(place_index, op_index);
    return;
  }
  const uint32_t token = make_token(place_index, op_index);
  switch (op.kind) {
    case OpKind::kSend: {
      const Region source = region(place, plan.sources_of(op)[0], length);
      group().send(
          *this, token, op.peer,
          tag::collective(0, group().rank(), sequence(), place.slice, op.message, fingerprint_),
          source.data, length);
      return;
    }
    case OpKind::kRecv: {
      const Region destination = region(place, op.destination, length);
      group().receive(*this, token, op.peer,
                      tag::collective(group().slot(), op.peer, sequence(), place.slice, op.message,
                                      fingerprint_),
                      tag::kCollectiveMask, destination.data, length);
      return;
    }
    case OpKind::kCopy: {
      const Region source = region(place, plan.sources_of(op)[0], length);
      const Region destination = region(place, op.destination, length);
      if (source.data != destination.data) {
        std::memcpy(destination.data, source.data, length);
      }
      break;
    }
    case OpKind::kReduce: {
      std::array<const void*, 16> few;
      std::vector<const void*> many;
      std::span<const void*> operands;
      if (op.num_sources <= few.size()) {
        operands = std::span(few.data(), op.num_sources);
      } else {
        many.resize(op.num_sources);
        operands = many;
      }
      std::transform(plan.sources_of(op).begin(), plan.sources_of(op).end(), operands.begin(),
                     [&](const Block& block) { return region(place, block, length).data; });
      reduce(region(place, op.destination, length).data, operands,
             length / element_size(call_.dtype), call_.dtype, call_.reduce,
             op.is_final ? call_.divisor : 1);
      break;
    }
  }
  complete(place_index, op_index);
}

void CollectiveTask::complete(uint32_t place_index, uint32_t op_index) {
  Place& place = places_[place_index];
  const Plan& plan = *choice_.plan;
  for (const uint32_t next : plan.successors_of(plan.ops[op_index])) {
    if (--place.dependencies_left[next] == 0) {
      ready_.emplace_back(place_index, next);
    }
  }
  if (--place.ops_left > 0) {
    return;
  }
  if (++slices_done_ == num_slices_) {
    for (Place& each : places_) {
      group().engine().scratch().give_back(each.scratch);
    }
    places_.clear();
    finish();
  } else if (next_slice_ < num_slices_) {
    start_slice(place_index);
  }
}

void CollectiveTask::completed(uint32_t token, size_t length, uint64_t tag) {
  const uint32_t place = place_of(token);
  const uint32_t op_index = op_of(token);
  const Op& op = choice_.plan->ops[op_index];
  if (op.kind == OpKind::kRecv &&
      (tag::fingerprint_of(tag) != (fingerprint_ & tag::kFingerprintMask) ||
       length != part(op.length_of, places_[place].slice).bytes)) {
    mismatch(op.peer);
    return;
  }
  complete(place, op_index);
  run_ready();
}

void CollectiveTask::truncated(uint32_t token, uint64_t) {
  mismatch(choice_.plan->ops[op_of(token)].peer);
}

void CollectiveTask::mismatch(int peer) {
  end_group(Error(ErrorCode::kMismatch,
                  "ranks disagree about a collective: " + group().describe(peer) +
                      " made another call (a different collective, shape, dtype, root or "
                      "reduction) where rank " +
                      std::to_string(group().rank()) + " called " + name(),
                  peer));
}

void CollectiveTask::timed_out() {
  end_group(timeout_error());
}

void CollectiveTask::end_group(const Error& error) {
  fail(error);
  group().fail(error);
}

Region CollectiveTask::part(const Block& block, size_t slice) const {
  const std::vector<Region>& regions = block.space == Space::kOutput ? call_.output : call_.input;
  const size_t begin = slice * choice_.slice_bytes;
  if (!is_flat(call_.collective)) {
    const Region& whole = regions[block.index];
    return begin >= whole.bytes
               ? Region{}
               : Region{whole.data + begin, std::min(choice_.slice_bytes, whole.bytes - begin)};
  }
  const Region& whole = regions[0];
  const size_t element = reduces(call_.collective) ? element_size(call_.dtype) : 1;
  const size_t elements = std::min(choice_.slice_bytes, whole.bytes - begin) / element;
  const size_t first = part_begin(choice_.plan->part_weights, elements, block.index);
  const size_t last = part_begin(choice_.plan->part_weights, elements, block.index + size_t{1});
  return {whole.data + begin + first * element, (last - first) * element};
}

Region CollectiveTask::region(const Place& place, const Block& block, size_t length) const {
  if (block.space == Space::kScratch) {
    return {place.scratch.data + block.index * choice_.part_bytes, length};
  }
  return part(block, place.slice);
}

}  // namespace q7x2
