#include "executor/collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "executor/call_check.h"
#include "executor/codec_rates.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "transport/engine.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

static_assert(Plan::kMaxMessages == tag::kMaxMessages);

// A request's token: the place in the window, and the op.
constexpr int kOpBits = 24;
constexpr size_t kLine = 64;
// A multiple of every element's size; with a few operands it stays in the L1 cache.
constexpr size_t kTile = 4096;
// Spreads what is hashed over all bits.
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

uint32_t make_token(uint32_t place, uint32_t op) {
  return place << kOpBits | op;
}
uint32_t place_of(uint32_t token) {
  return token >> kOpBits;
}
uint32_t op_of(uint32_t token) {
  return token & ((uint32_t{1} << kOpBits) - 1);
}

size_t longest(const std::vector<Region>& regions) {
  size_t bytes = 0;
  for (const Region& region : regions) {
    bytes = std::max(bytes, region.bytes);
  }
  return bytes;
}

BlockCoder::Operand operand(const Block& block, const Region& source) {
  if (block.is_coded()) return {.message = {source.data, source.bytes}};
  return {.elements = source.data, .message = {}, .is_input = block.space == Space::kInput};
}

bool has_coded_source(const Plan& plan, const Op& op) {
  return std::ranges::any_of(plan.sources_of(op), &Block::is_coded);
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + kOdd + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ hash >> 33;
}

CollectiveCall checked(CollectiveCall call, const Group& group) {
  check_call(call, group.rank(), group.world_size());
  return call;
}

}  // namespace

CallShape shape_of(const CollectiveCall& call, const Planner& planner) {
  CallShape shape;
  shape.collective = call.collective;
  shape.root = call.root;
  shape.bytes =
      call.uneven ? CallShape::kUneven : std::max(longest(call.input), longest(call.output));
  shape.wide_accumulation = is_reduction(call.collective) && accumulates_wider(call.dtype);
  shape.algorithms = call.algorithms;
  if (call.coding) {
    shape.codec = call.coding.codec->name();
    shape.exact_sums = call.coding.codec->traits().exact_sums;
    shape.coding = coding_cost(*call.coding.codec, call.dtype, *planner.fabric());
  }
  return shape;
}

std::vector<std::shared_ptr<CollectiveTask>> CollectiveTask::make(
    std::shared_ptr<Group> group, Planner& planner, CollectiveCall call,
    std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout) {
  const auto task = std::make_shared<CollectiveTask>(group, planner, std::move(call),
                                                     std::move(keep_alive), timeout);
  if (!task->counts_) return {task};
  const std::span counts = std::as_writable_bytes(std::span(*task->counts_));
  CollectiveCall sum;
  sum.collective = Collective::kAllReduce;
  sum.input = sum.output = {{counts.data(), counts.size()}};
  sum.dtype = DType::kInt32;
  sum.title = "counts of a balanced all_reduce";
  const auto counting = std::make_shared<CollectiveTask>(std::move(group), planner, std::move(sum),
                                                         task->counts_, timeout);
  task->counting_ = counting;
  return {counting, task};
}

CollectiveTask::CollectiveTask(std::shared_ptr<Group> group, Planner& planner, CollectiveCall call,
                               std::shared_ptr<void> keep_alive, std::chrono::milliseconds timeout)
    : Task(std::move(group), timeout),
      call_(checked(std::move(call), Task::group())),
      keep_alive_(std::move(keep_alive)),
      choice_(planner.choose(shape_of(call_, planner))) {
  if (is_reduction(call_.collective)) {
    check_reducible(call_.dtype, call_.reduce, call_.divisor);
  }
  bytes_ = std::max(longest(call_.input), longest(call_.output));
  if (call_.coding) {
    coder_.emplace(call_.coding, call_.dtype, longest_part(), bytes_,
                   is_reduction(call_.collective));
    if (call_.coding.codec->traits().selects || is_balanced()) select();
  }
  if (this->group().channel() != nullptr) find_shared_stages();
  num_slices_ = (bytes_ + choice_.slice_bytes - 1) / choice_.slice_bytes;
  if (call_.uneven) num_slices_ = std::max<size_t>(num_slices_, 1);
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
  if (is_reduction(call_.collective)) {
    text += std::string(" of ") + to_string(call_.dtype) + ", " + to_string(call_.reduce);
  }
  if (call_.root >= 0) {
    text += ", root " + std::to_string(call_.root);
  }
  return text + ") on rank " + std::to_string(group().rank()) + " of " +
         std::to_string(group().world_size()) + " in group '" + group().name() + "'";
}

// What all ranks must agree on. Uneven parts are known to a pair of ranks only, and of the parts of
// an all-gather every rank knows them all.
uint64_t CollectiveTask::fingerprint() const {
  uint64_t hash = static_cast<uint64_t>(call_.collective);
  hash = mix(hash, static_cast<uint64_t>(call_.root + 1));
  hash = mix(hash, call_.uneven ? 1 : std::max(longest(call_.input), longest(call_.output)));
  hash = mix(hash, call_.agreed);
  if (call_.collective == Collective::kAllGather) {
    uint64_t lengths = 0;
    for (const Region& part : call_.output) lengths = lengths * kOdd + part.bytes;
    hash = mix(hash, lengths);
  }
  if (is_reduction(call_.collective)) {
    hash = mix(hash, static_cast<uint64_t>(call_.dtype) << 32 |
                         static_cast<uint64_t>(call_.reduce) << 24 |
                         static_cast<uint64_t>(call_.divisor));
  }
  for (const char c : choice_.plan->algorithm) {
    hash = mix(hash, static_cast<uint64_t>(c));
  }
  if (call_.coding) {
    for (const char c : call_.coding.codec->name()) {
      hash = mix(hash, static_cast<uint64_t>(c));
    }
    hash = mix(hash, call_.coding.keys.shared);
    hash = mix(hash, static_cast<uint64_t>(call_.dtype));
  }
  hash = mix(hash, choice_.slice_bytes);
  return hash;
}

uint64_t CollectiveTask::fingerprint(const Op& op) const {
  return call_.uneven ? mix(fingerprint_, whole(op.length_of).bytes) : fingerprint_;
}

void CollectiveTask::start() {
  group().remember(sequence(), fingerprint_);
  if (num_slices_ == 0 || choice_.plan->ops.empty()) {
    finish();
    return;
  }
  const Plan& plan = *choice_.plan;
  places_.resize(tickets_.empty() ? wanted_places() : tickets_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    place.ops_left = 0;
    place.dependencies_left.resize(plan.ops.size());
    place.scratch_at.resize(plan.num_scratch);
    place.coded_at.resize(plan.num_coded);
    size_t scratch_bytes = plan.num_scratch * choice_.part_bytes;
    if (coder_) {
      scratch_bytes += plan.num_coded * coder_->max_bytes();
    }
    if (scratch_bytes > 0) {
      place.scratch = group().engine().scratch().take(scratch_bytes);
    }
    if (staging_) {
      place.ticket = tickets_[i];
      place.staging =
          group().channel()->arena() + staging_->offset + i * stage_bytes_ * num_shared_stages_;
      place.staged.resize(plan.num_stages);
    }
  }
  start_slices();
  run_ready();
}

// Only what ranks of this host receive needs room in shared memory.
void CollectiveTask::find_shared_stages() {
  const Plan& plan = *choice_.plan;
  shared_stage_.assign(plan.num_stages, Op::kNoStage);
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kSend && shared_stage_[op.stage] == Op::kNoStage &&
        group().shares_memory(op.peer)) {
      shared_stage_[op.stage] = num_shared_stages_++;
    }
  }
}

size_t CollectiveTask::wanted_places() const {
  return std::min(static_cast<size_t>(choice_.window), num_slices_);
}

// Collectives of a group take staging in their order, on every rank, and never wait for more while
// they run: what the oldest one needs is held by none that waits for it.
bool CollectiveTask::reserve() {
  if (!cut_by_counts()) {
    return false;
  }
  HostChannel* channel = group().channel();
  if (channel == nullptr || num_slices_ == 0 || num_shared_stages_ == 0 || staging_) {
    return true;
  }
  if (bytes_ <= HostChannel::kInlineBytes && !coder_) {
    return true;
  }
  stage_bytes_ = std::min(choice_.part_bytes, (bytes_ + kLine - 1) / kLine * kLine);
  if (coder_) {
    stage_bytes_ = std::max(stage_bytes_, coder_->max_bytes());
  }
  const size_t place_bytes = stage_bytes_ * num_shared_stages_;
  for (size_t places = wanted_places(); places > 0; places /= 2) {
    staging_ = channel->reserve(places * place_bytes);
    if (!staging_) {
      continue;
    }
    while (tickets_.size() < places) {
      const std::optional<int> ticket = channel->take_ticket();
      if (!ticket) {
        break;
      }
      tickets_.push_back(*ticket);
    }
    if (!tickets_.empty()) {
      return true;
    }
    channel->free(*staging_);
    staging_.reset();
  }
  return false;
}

bool CollectiveTask::is_balanced() const {
  const size_t parts = choice_.plan->part_weights.size();
  const size_t elements = bytes_ / element_size(call_.dtype);
  // Fewer granules than that leave nothing to choose.
  return call_.coding.codec->spec().balanced && call_.collective == Collective::kAllReduce &&
         parts > 1 && elements >= 2 * parts * granule_of(elements, longest_part());
}

// False until the counts of all ranks are there. If they failed, so will this task with its group.
bool CollectiveTask::cut_by_counts() {
  if (!counting_ || ranges_) return true;
  if (!counting_->done() || counting_->error()) return false;
  const size_t elements = bytes_ / element_size(call_.dtype);
  ranges_.emplace(*counts_, granule_of(elements, longest_part()), elements,
                  choice_.plan->part_weights.size(), longest_part());
  num_slices_ = ranges_->num_slices();
  return true;
}

void CollectiveTask::start_slices() {
  while (next_slice_ < num_slices_ && next_slice_ < slices_done_ + places_.size()) {
    const auto place = static_cast<uint32_t>(next_slice_ % places_.size());
    if (staging_ && !group().channel()->is_returned(places_[place].ticket)) {
      if (!is_stalled_) {
        is_stalled_ = true;
        group().stall(*this);
      }
      return;
    }
    start_slice(place);
  }
}

bool CollectiveTask::stalled() {
  is_stalled_ = false;
  const size_t before = next_slice_;
  start_slices();
  run_ready();
  return next_slice_ > before;
}

void CollectiveTask::start_slice(uint32_t place_index) {
  Place& place = places_[place_index];
  place.slice = next_slice_++;
  const std::vector<Op>& ops = choice_.plan->ops;
  place.ops_left = static_cast<uint32_t>(ops.size());
  place.staged.assign(place.staged.size(), false);
  for (size_t i = 0; i < place.scratch_at.size(); ++i) {
    place.scratch_at[i] = own_scratch(place, i);
  }
  for (size_t i = 0; i < place.coded_at.size(); ++i) {
    place.coded_at[i] = {own_coded(place, i), 0};
  }
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
  // Of uneven parts each pair exchanges the first slice, even if it is empty: so a rank that
  // expects nothing notices one that sends it something, and the other way round.
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kRecv;
  if (length == 0 && !(call_.uneven && is_message && place.slice == 0)) {
    complete(place_index, op_index);
    return;
  }
  switch (op.kind) {
    case OpKind::kSend:
      send(place_index, op_index, length);
      return;
    case OpKind::kRecv:
      receive(place_index, op_index, length);
      return;
    case OpKind::kCopy:
      copy(place, op, length);
      break;
    case OpKind::kReduce:
      if (coder_ && (op.destination.is_coded() || has_coded_source(plan, op))) {
        fold_coded(place, op, length);
      } else {
        fold(place, op, length);
      }
      break;
  }
  if (!done()) {
    complete(place_index, op_index);
  }
}

void CollectiveTask::copy(Place& place, const Op& op, size_t length) {
  const Block& block = choice_.plan->sources_of(op)[0];
  const Region source = region(place, block, length);
  if (!block.is_coded() && !op.destination.is_coded()) {
    const Region destination = writable(place, op.destination, length);
    if (covers(source, length) && covers(destination, length) && source.data != destination.data) {
      copy_bytes(destination.data, source.data, length);
    }
    return;
  }
  const size_t count = length / element_size(call_.dtype);
  const BlockCoder::Place at = coding_place(op.length_of, place.slice);
  if (op.destination.is_coded()) {
    if (!covers(source, length)) return;
    std::byte* message = message_of(place, op);
    place.coded_at[op.destination.index] = {
        message, coder_->encode(operand(block, source), count, at, message)};
    return;
  }
  const Region destination = writable(place, op.destination, length);
  if (!covers(destination, length)) return;
  decoding([&] { coder_->decode({source.data, source.bytes}, count, at, destination.data); });
}

void CollectiveTask::fold_coded(Place& place, const Op& op, size_t length) {
  std::vector<BlockCoder::Operand> operands;
  for (const Block& block : choice_.plan->sources_of(op)) {
    const Region source = region(place, block, length);
    if (!block.is_coded() && !covers(source, length)) return;
    operands.push_back(operand(block, source));
  }
  const size_t count = length / element_size(call_.dtype);
  const BlockCoder::Place at = coding_place(op.length_of, place.slice);
  const int divisor = op.is_final ? call_.divisor : 1;
  decoding([&] {
    if (op.destination.is_coded()) {
      std::byte* message = message_of(place, op);
      place.coded_at[op.destination.index] = {
          message, coder_->fold_to_message(operands, count, at, divisor, message)};
    } else if (const Region result = writable(place, op.destination, length);
               covers(result, length)) {
      coder_->fold(operands, count, at, divisor, result.data);
    }
  });
}

// Messages of other ranks are checked as they are read.
template <class Body>
void CollectiveTask::decoding(Body body) {
  try {
    body();
  } catch (const Error& error) {
    end_group(Error(error.code(), std::string(error.what()) + ", in " + name(), error.rank()));
  }
}

bool CollectiveTask::is_staged(const Op& op) const {
  return op.stage != Op::kNoStage && staging_ && shared_stage_[op.stage] != Op::kNoStage;
}

std::byte* CollectiveTask::stage_of(const Place& place, const Op& op) const {
  return place.staging + shared_stage_[op.stage] * stage_bytes_;
}

std::byte* CollectiveTask::message_of(Place& place, const Op& op) {
  if (!is_staged(op)) return own_coded(place, op.destination.index);
  place.staged[op.stage] = true;
  return stage_of(place, op);
}

// What goes on to others is put into shared memory tile by tile, as it leaves the reduction: from
// the nearest cache.
void CollectiveTask::fold(Place& place, const Op& op, size_t length) {
  const Plan& plan = *choice_.plan;
  std::array<const void*, 16> few;
  std::vector<const void*> many;
  std::span<const void*> operands;
  if (op.num_sources <= few.size()) {
    operands = std::span(few.data(), op.num_sources);
  } else {
    many.resize(op.num_sources);
    operands = many;
  }
  size_t shortest = length;
  std::transform(plan.sources_of(op).begin(), plan.sources_of(op).end(), operands.begin(),
                 [&](const Block& block) {
                   const Region source = region(place, block, length);
                   shortest = std::min(shortest, source.bytes);
                   return source.data;
                 });
  const Region destination = writable(place, op.destination, length);
  shortest = std::min(shortest, destination.bytes);
  if (!covers({nullptr, shortest}, length)) return;
  std::byte* result = destination.data;
  const int divisor = op.is_final ? call_.divisor : 1;
  const size_t element = element_size(call_.dtype);
  if (length <= HostChannel::kInlineBytes || !is_staged(op)) {
    reduce(result, operands, length / element, call_.dtype, call_.reduce, divisor);
    return;
  }
  std::byte* const stage = stage_of(place, op);
  for (size_t begin = 0; begin < length; begin += kTile) {
    const size_t tile = std::min(kTile, length - begin);
    reduce(result + begin, operands, tile / element, call_.dtype, call_.reduce, divisor);
    copy_bytes(stage + begin, result + begin, tile);
    for (const void*& operand : operands) {
      operand = static_cast<const std::byte*>(operand) + tile;
    }
  }
  place.staged[op.stage] = true;
}

void CollectiveTask::send(uint32_t place_index, uint32_t op_index, size_t length) {
  Place& place = places_[place_index];
  const Op& op = choice_.plan->ops[op_index];
  const Block& block = choice_.plan->sources_of(op)[0];
  const Region message = region(place, block, length);
  if (coder_ && block.space == Space::kInput) {
    // In place, where the result will be: whatever else reads this block finds the same sum.
    coder_->give(coding_place(block, place.slice), length / element_size(call_.dtype),
                 message.data);
  }
  const std::byte* source = message.data;
  length = message.bytes;
  const uint32_t token = make_token(place_index, op_index);
  if (!group().shares_memory(op.peer)) {
    const uint64_t tag =
        tag::collective(0, group().rank(), sequence(), place.slice, op.message, fingerprint(op));
    group().send(*this, token, op.peer, tag, source, length, group().wire(op.peer));
    return;
  }
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, fingerprint(op));
  int ticket = HostChannel::kNoTicket;
  if (length > HostChannel::kInlineBytes) {
    std::byte* const stage = stage_of(place, op);
    if (!place.staged[op.stage]) {
      place.staged[op.stage] = true;
      copy_bytes(stage, source, length);
    }
    source = stage;
    ticket = place.ticket;
  }
  if (group().send_shared(*this, token, op.peer, tag, source, length, ticket)) {
    complete(place_index, op_index);
  }
}

void CollectiveTask::receive(uint32_t place_index, uint32_t op_index, size_t length) {
  Place& place = places_[place_index];
  const Op& op = choice_.plan->ops[op_index];
  const uint32_t token = make_token(place_index, op_index);
  if (!group().shares_memory(op.peer)) {
    const Region room = op.destination.is_coded()
                            ? Region{own_coded(place, op.destination.index), coder_->max_bytes()}
                            : writable(place, op.destination, length);
    group().receive(
        *this, token, op.peer,
        tag::collective(group().slot(), op.peer, sequence(), place.slice, op.message, 0),
        tag::kCollectiveMask, room.data, room.bytes, group().wire(op.peer));
    return;
  }
  const uint64_t tag = tag::shared_collective(sequence(), place.slice, op.message, 0);
  if (const auto message = group().receive_shared(*this, token, op.peer, tag)) {
    take(place_index, op_index, *message);
  }
}

void CollectiveTask::arrived(uint32_t token, const HostChannel::Message& message) {
  take(place_of(token), op_of(token), message);
  run_ready();
}

void CollectiveTask::take(uint32_t place_index, uint32_t op_index,
                          const HostChannel::Message& message) {
  Place& place = places_[place_index];
  const Op& op = choice_.plan->ops[op_index];
  if (!is_expected(place, op, message.tag, message.length, /*is_shared=*/true)) {
    mismatch(op.peer);
    return;
  }
  if (!op.destination.is_part() && message.staged != nullptr) {
    // Read where it lies. Only `writable` gives a block away to be changed, and not this memory.
    auto* const data = const_cast<std::byte*>(message.staged);
    if (op.destination.is_coded()) {
      place.coded_at[op.destination.index] = {data, message.length};
    } else {
      place.scratch_at[op.destination.index] = data;
    }
    place.held.emplace_back(op.peer, message);
  } else if (op.destination.is_coded()) {
    Region& coded = place.coded_at[op.destination.index];
    coded = {own_coded(place, op.destination.index), message.length};
    copy_bytes(coded.data, message.data(), message.length);
    group().give_back(op.peer, message);
  } else {
    const Region destination = writable(place, op.destination, message.length);
    if (!covers(destination, message.length)) return;
    copy_bytes(destination.data, message.data(), message.length);
    group().give_back(op.peer, message);
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
  for (const auto& [source, message] : place.held) {
    group().give_back(source, message);
  }
  place.held.clear();
  while (slices_done_ < next_slice_ && places_[slices_done_ % places_.size()].ops_left == 0) {
    ++slices_done_;
  }
  if (slices_done_ < num_slices_) {
    if (is_flat(call_.collective)) {
      set_ready(flat_begin(slices_done_, 0) * flat_element());
    }
    start_slices();
    return;
  }
  for (Place& each : places_) {
    group().engine().scratch().give_back(each.scratch);
  }
  places_.clear();
  if (staging_) {
    group().retire_staging(*staging_, std::move(tickets_));
    staging_.reset();
  }
  if (coder_ && coder_->met_nonfinite()) {
    fail(Error(ErrorCode::kNotFinite, "infinities or NaNs in the result of " + name()));
    return;
  }
  if (const auto error = group().leftover()) {
    end_group(*error);
    return;
  }
  finish();
}

void CollectiveTask::completed(uint32_t token, size_t length, uint64_t tag) {
  const uint32_t place = place_of(token);
  const uint32_t op_index = op_of(token);
  const Op& op = choice_.plan->ops[op_index];
  if (op.kind == OpKind::kRecv && !is_expected(places_[place], op, tag, length, false)) {
    mismatch(op.peer);
    return;
  }
  if (op.kind == OpKind::kRecv && op.destination.is_coded()) {
    Place& at = places_[place];
    at.coded_at[op.destination.index] = {own_coded(at, op.destination.index), length};
  }
  complete(place, op_index);
  run_ready();
}

bool CollectiveTask::is_expected(const Place& place, const Op& op, uint64_t tag, size_t length,
                                 bool is_shared) const {
  const bool fits = op.destination.is_coded() ? length <= coder_->max_bytes()
                                              : length == part(op.length_of, place.slice).bytes;
  const uint64_t mask = is_shared ? tag::kSharedFingerprintMask : tag::kFingerprintMask;
  return ((tag ^ fingerprint(op)) & mask) == 0 && fits;
}

void CollectiveTask::truncated(uint32_t token, uint64_t) {
  mismatch(choice_.plan->ops[op_of(token)].peer);
}

void CollectiveTask::mismatch(int peer) {
  end_group(Error(ErrorCode::kMismatch,
                  "ranks disagree about a collective: " + group().describe(peer) +
                      " made another call (a different collective, shape, dtype, root, split, "
                      "reduction or q7x2.algorithm) where rank " +
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

bool CollectiveTask::covers(const Region& region, size_t length) {
  if (region.bytes >= length) return true;
  end_group(Error(ErrorCode::kInternal, name() + ": " + choice_.plan->algorithm + " would use " +
                                            std::to_string(length) + " bytes of a block of " +
                                            std::to_string(region.bytes)));
  return false;
}

const Region& CollectiveTask::whole(const Block& block) const {
  const std::vector<Region>& regions = block.space == Space::kOutput ? call_.output : call_.input;
  return regions[is_flat(call_.collective) ? 0 : block.index];
}

Region CollectiveTask::part(const Block& block, size_t slice) const {
  const Region& all = whole(block);
  if (!is_flat(call_.collective)) {
    const size_t begin = slice * choice_.slice_bytes;
    return begin >= all.bytes
               ? Region{}
               : Region{all.data + begin, std::min(choice_.slice_bytes, all.bytes - begin)};
  }
  const size_t first = flat_begin(slice, block.index);
  const size_t last = flat_begin(slice, block.index + size_t{1});
  return {all.data + first * flat_element(), (last - first) * flat_element()};
}

size_t CollectiveTask::flat_element() const {
  return is_reduction(call_.collective) ? element_size(call_.dtype) : 1;
}

size_t CollectiveTask::flat_begin(size_t slice, size_t part) const {
  if (ranges_) return ranges_->begin(slice, part);
  const size_t begin = slice * choice_.slice_bytes;
  const size_t bytes = std::min(choice_.slice_bytes, call_.input[0].bytes - begin);
  return begin / flat_element() + choice_.plan->part_begin(bytes / flat_element(), part);
}

Region CollectiveTask::region(const Place& place, const Block& block, size_t length) const {
  if (block.is_coded()) {
    return place.coded_at[block.index];
  }
  if (block.space == Space::kScratch) {
    return {place.scratch_at[block.index], length};
  }
  return part(block, place.slice);
}

Region CollectiveTask::writable(Place& place, const Block& block, size_t length) const {
  if (block.space == Space::kScratch) {
    place.scratch_at[block.index] = own_scratch(place, block.index);
  }
  return region(place, block, length);
}

size_t CollectiveTask::first_element(const Block& block, size_t slice) const {
  if (is_flat(call_.collective)) return flat_begin(slice, block.index);
  return slice * choice_.slice_bytes / element_size(call_.dtype);
}

// Elements are counted through all inputs of a reduction, one after the other: there a part has one
// index on all ranks. What is gathered is counted within its part.
BlockCoder::Place CollectiveTask::coding_place(const Block& block, size_t slice) const {
  const size_t first = first_element(block, slice);
  const bool is_many = call_.collective == Collective::kReduceScatter;
  const size_t region = is_many ? block.index : 0;
  BlockCoder::Place place{first, nullptr};
  for (size_t i = 0; i < region; ++i) {
    place.first += call_.input[i].bytes / element_size(call_.dtype);
  }
  const bool has_errors =
      call_.collective != Collective::kAllGather || block.space == Space::kInput;
  if (!call_.coding.errors.empty() && has_errors) {
    place.errors = call_.coding.errors[region] + first;
  }
  return place;
}

void CollectiveTask::select() {
  const size_t element = element_size(call_.dtype);
  size_t count = 0;
  for (const Region& region : call_.input) count += region.bytes / element;
  std::vector<float> chunk(kLargestRead);
  const ReadElements read = [&](size_t first, size_t wanted) -> const float* {
    float* out = chunk.data();
    for (size_t i = 0; i < call_.input.size() && wanted > 0; ++i) {
      const size_t here = call_.input[i].bytes / element;
      if (first >= here) {
        first -= here;
        continue;
      }
      const size_t length = std::min(wanted, here - first);
      const std::byte* const source = call_.input[i].data + first * element;
      if (call_.dtype == DType::kFloat32 && call_.coding.errors.empty() && length == wanted &&
          out == chunk.data()) {
        return reinterpret_cast<const float*>(source);
      }
      widen(out, source, length, call_.dtype);
      if (!call_.coding.errors.empty()) {
        const float* errors = call_.coding.errors[i] + first;
        for (size_t j = 0; j < length; ++j) out[j] += errors[j];
      }
      out += length;
      wanted -= length;
      first = 0;
    }
    return chunk.data();
  };
  coder_->select(read, count);
  if (is_balanced()) {
    counts_ = std::make_shared<std::vector<int32_t>>(
        coder_->count_selected(read, count, granule_of(count, longest_part())));
  }
}

std::byte* CollectiveTask::own_coded(const Place& place, size_t index) const {
  return place.scratch.data + choice_.plan->num_scratch * choice_.part_bytes +
         index * coder_->max_bytes();
}

std::byte* CollectiveTask::own_scratch(const Place& place, size_t index) const {
  return place.scratch.data + index * choice_.part_bytes;
}

}  // namespace q7x2
