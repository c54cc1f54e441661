#include "executor/window/peer_window.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process_memory.h"
#include "executor/collective/message.h"
#include "transport/peer/peer.h"
#include "transport/trust/job_secret.h"
#include "transport/ucx/locked.h"

namespace q7x2 {
namespace {

constexpr size_t kPage = 4096;
constexpr int kChecks = 200;  // before a waiting thread lets others run
constexpr int kYields = 20;   // before it sleeps
constexpr std::chrono::milliseconds kSleep{10};

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kPage)); }
};

}  // namespace

struct PeerWindow::Memory {
  std::unique_ptr<SharedMemory> segment;
  std::unique_ptr<std::byte[], FreeAligned> unshared;  // where the host has no memory to share
  size_t bytes = 0;                                    // the length of the segment
  std::optional<SignalBoard> board;
  std::span<std::byte> window;
  std::shared_ptr<void> owner;

  Memory(const UcpContext& context, int ranks, const Options& options) : owner(options.owner) {
    const size_t head = (SignalBoard::bytes(ranks) + kPage - 1) / kPage * kPage;
    bytes = head + (options.memory == nullptr ? options.bytes : 0);
    try {
      segment = std::make_unique<SharedMemory>(context, bytes);
    } catch (const Error&) {
      unshared.reset(new (std::align_val_t(kPage)) std::byte[bytes]());
    }
    std::byte* const begin = segment ? segment->data() : unshared.get();
    board.emplace(begin);
    fill_randomly(board->token());
    window = {options.memory == nullptr ? begin + head : options.memory, options.bytes};
  }
  std::byte* begin() const { return segment ? segment->data() : unshared.get(); }
  /// Whether others can load and store the window.
  bool is_shared() const {
    return segment && window.data() >= begin() && window.data() < begin() + bytes;
  }
};

struct PeerWindow::Address {
  uint64_t agreed = 0;
  uint64_t bytes = 0;
  uint64_t address = 0;  // where the window is
  uint64_t token_address = 0;
  SignalBoard::Token token{};
  uint64_t segment_bytes = 0;  // 0: there is no segment
  uint64_t offset = 0;         // where the window is in the segment; 0: it is not there
  uint64_t key_length = 0;
  std::array<char, 1024> key{};
};

std::shared_ptr<PeerWindow> PeerWindow::make(const std::shared_ptr<Runtime>& runtime,
                                             std::shared_ptr<Group> group, const Options& options,
                                             const Exchange& exchange) {
  std::shared_ptr<PeerWindow> window(new PeerWindow(runtime, std::move(group), options));
  window->open(options.agreed, exchange);
  return window;
}

PeerWindow::PeerWindow(const std::shared_ptr<Runtime>& runtime, std::shared_ptr<Group> group,
                       const Options& options)
    : runtime_(runtime),
      group_(std::move(group)),
      tags_(options.number),
      sides_(static_cast<size_t>(group_->world_size())) {
  const Locked locked(runtime_->lock());
  memory_ = std::make_shared<Memory>(runtime_->reactor().context(), group_->world_size(), options);
}

PeerWindow::~PeerWindow() {
  if (runtime_->forked()) {
    for (Side& side : sides_) static_cast<void>(side.mapped.release());
    new std::shared_ptr<Memory>(std::move(memory_));  // it belongs to the parent
    return;
  }
  memory_->board->close();
  const Locked locked(runtime_->lock());
  for (Side& side : sides_) side.mapped.reset();
  memory_.reset();
}

std::span<std::byte> PeerWindow::memory() const {
  return memory_->window;
}

bool PeerWindow::has_signal(int rank, uint64_t number) const {
  return memory_->board->count(rank) >= number;
}

// ------------------------------------------------------------------------------------- set-up

// First all ranks say where their windows are, then to whom they can copy by themselves. What
// another rank sends before the service for it runs waits for it.
void PeerWindow::open(uint64_t agreed, const Exchange& exchange) {
  const int ranks = group_->world_size();
  const Address mine = own_address(agreed);
  const auto all = exchange(std::as_bytes(std::span(&mine, 1)));
  for (int r = 0; r < ranks; ++r) {
    Address address;
    std::memcpy(&address, all.data() + index(r) * sizeof(Address), sizeof(Address));
    if (address.agreed != agreed) {
      throw Error(ErrorCode::kMismatch,
                  text("its elements differ from those of rank " + std::to_string(r)), r);
    }
    reach(r, address);
  }
  std::vector<std::byte> direct;
  for (const Side& side : sides_) direct.push_back(std::byte{side.is_direct});
  const auto reached = exchange(direct);
  for (int r = 0; r < ranks; ++r) {
    if (reached[index(r) * index(ranks) + index(rank())] != std::byte{0}) continue;
    services_.push_back(std::make_shared<WindowService>(group_, r, tags_, memory_->window,
                                                        *memory_->board, memory_));
    runtime_->submit(services_.back(), /*caller_waits=*/false);
  }
}

PeerWindow::Address PeerWindow::own_address(uint64_t agreed) const {
  Address mine;
  mine.agreed = agreed;
  mine.bytes = memory_->window.size();
  mine.address = reinterpret_cast<uint64_t>(memory_->window.data());
  mine.token = memory_->board->token();
  mine.token_address = reinterpret_cast<uint64_t>(memory_->board->token().data());
  const bool has_key = memory_->segment && memory_->segment->key().size() <= mine.key.size();
  if (!has_key) return mine;
  const std::string& key = memory_->segment->key();
  mine.segment_bytes = memory_->bytes;
  mine.key_length = key.size();
  std::ranges::copy(key, mine.key.begin());
  if (memory_->is_shared()) {
    mine.offset = static_cast<uint64_t>(memory_->window.data() - memory_->begin());
  }
  return mine;
}

void PeerWindow::reach(int rank, const Address& address) {
  Side& side = sides_[index(rank)];
  side.bytes = address.bytes;
  if (rank == this->rank()) {
    side.is_direct = true;
    side.shared = memory_->window.data();
    side.board.emplace(*memory_->board);
    return;
  }
  if (!group_->membership().same_host(rank) || address.segment_bytes == 0) return;
  try {
    map(rank, address);
    if (side.shared == nullptr) {
      SignalBoard::Token token{};
      read_process(side.process, address.token_address, token.data(), token.size());
      if (token != address.token) return;
    }
    side.is_direct = true;
  } catch (const Error&) {
    // Then messages carry what this rank puts there.
  }
}

void PeerWindow::map(int rank, const Address& address) {
  Side& side = sides_[index(rank)];
  Locked locked(runtime_->lock());
  Peer& peer = group_->membership().peer(rank);
  if (!runtime_->peers().connect(locked, peer)) {
    throw Error(ErrorCode::kTransport, text("no connection"), rank);
  }
  const std::string_view key(address.key.data(), address.key_length);
  side.mapped = std::make_unique<MappedMemory>(peer.shared.endpoint(), key, address.segment_bytes);
  side.board.emplace(side.mapped->data());
  side.process = group_->membership().peer_info(rank).pid;
  side.address = address.address;
  if (address.offset > 0) side.shared = side.mapped->data() + address.offset;
}

// ---------------------------------------------------------------------------------- transfers

PeerWindow::Tasks PeerWindow::put(int rank, size_t offset, const void* data, size_t bytes,
                                  std::shared_ptr<void> owner, std::chrono::milliseconds timeout) {
  check("put", rank, offset, bytes);
  Side& side = sides_[index(rank)];
  if (bytes == 0) return {};
  if (side.shared != nullptr) {
    std::memmove(side.shared + offset, data, bytes);
    return {};
  }
  if (side.is_direct) {
    write_process(side.process, side.address + offset, data, bytes);
    return {};
  }
  return order(
      rank, {WindowOrder::Kind::kPut, offset, bytes},
      [&] {
        return message(true, rank, tags_.puts(), const_cast<void*>(data), bytes, std::move(owner),
                       timeout);
      },
      timeout);
}

PeerWindow::Tasks PeerWindow::get(int rank, size_t offset, void* data, size_t bytes,
                                  std::shared_ptr<void> owner, std::chrono::milliseconds timeout) {
  check("get", rank, offset, bytes);
  Side& side = sides_[index(rank)];
  if (bytes == 0) return {};
  if (side.shared != nullptr) {
    std::memmove(data, side.shared + offset, bytes);
    return {};
  }
  if (side.is_direct) {
    read_process(side.process, side.address + offset, data, bytes);
    return {};
  }
  return order(
      rank, {WindowOrder::Kind::kGet, offset, bytes},
      [&] { return message(false, rank, tags_.gets(), data, bytes, std::move(owner), timeout); },
      timeout);
}

PeerWindow::Tasks PeerWindow::signal(int rank, std::chrono::milliseconds timeout) {
  check_open("signal", rank);
  Side& side = sides_[index(rank)];
  if (side.is_direct) {
    side.board->signal(this->rank());
    return {};
  }
  return order(rank, {WindowOrder::Kind::kSignal, 0, 0}, nullptr, timeout);
}

PeerWindow::Tasks PeerWindow::order(int rank, WindowOrder order,
                                    const std::function<std::shared_ptr<Task>()>& bytes,
                                    std::chrono::milliseconds timeout) {
  const auto kept = std::make_shared<WindowOrder>(order);
  const std::lock_guard<std::mutex> lock(sides_[index(rank)].turn);
  Tasks tasks{message(true, rank, tags_.orders(), kept.get(), sizeof(*kept), kept, timeout)};
  if (bytes) tasks.push_back(bytes());
  return tasks;
}

std::shared_ptr<Task> PeerWindow::message(bool sends, int rank, uint32_t tag, void* data,
                                          size_t bytes, std::shared_ptr<void> owner,
                                          std::chrono::milliseconds timeout) {
  using Direction = MessageTask::Direction;
  auto task = std::make_shared<MessageTask>(group_, sends ? Direction::kSend : Direction::kReceive,
                                            rank, tag, data, bytes, std::move(owner), timeout);
  runtime_->submit(task, /*caller_waits=*/false);
  return task;
}

void PeerWindow::check(const char* call, int rank, size_t offset, size_t bytes) const {
  check_open(call, rank);
  const size_t room = sides_[index(rank)].bytes;
  if (bytes <= room && offset <= room - bytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              text(std::string(call) + ": expected a place in the " + std::to_string(room) +
                   " bytes of rank " + std::to_string(rank) + ", got " + std::to_string(bytes) +
                   " bytes at " + std::to_string(offset)));
}

void PeerWindow::check_open(const char* call, int rank) const {
  if (rank < 0 || rank >= group_->world_size()) {
    throw Error(ErrorCode::kInvalidArgument,
                text(std::string(call) + ": expected a rank of a group of " +
                     std::to_string(group_->world_size()) + ", got " + std::to_string(rank)));
  }
  group_->check();
  if (is_closed_) {
    throw Error(ErrorCode::kInvalidArgument, text(std::string(call) + ": it is closed"));
  }
  const std::optional<SignalBoard>& board = sides_[index(rank)].board;
  if (board && board->is_closed()) {
    throw Error(ErrorCode::kPeerLeft,
                text(std::string(call) + ": rank " + std::to_string(rank) + " has closed its"),
                rank);
  }
}

std::string PeerWindow::text(const std::string& what) const {
  return "the window of rank " + std::to_string(rank()) + " in group '" +
         group_->membership().name() + "': " + what;
}

// ------------------------------------------------------------------------------------- waits

void PeerWindow::wait_signal(int rank, uint64_t number, std::chrono::milliseconds timeout) {
  for (int i = 0; i < kChecks + kYields; ++i) {
    if (has_signal(rank, number)) return;
    if (i >= kChecks) std::this_thread::yield();
  }
  const TimePoint deadline = Clock::now() + timeout;
  while (!has_signal(rank, number)) {
    Runtime::check_interrupt();
    group_->check();
    for (const auto& service : services_) {
      if (service->done() && service->error()) throw *service->error();
    }
    const bool has_left = [&] {
      const Locked locked(runtime_->lock());
      return group_->departure().has_left(rank);
    }();
    if (has_signal(rank, number)) return;
    if (has_left) {
      throw Error(ErrorCode::kPeerLeft,
                  text("rank " + std::to_string(rank) + " has left without its signal"), rank);
    }
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::kTimeout,
                  text("no signal of rank " + std::to_string(rank) + " after " +
                       std::to_string(timeout.count()) + " ms"),
                  rank);
    }
    memory_->board->sleep(rank, number, kSleep);
  }
}

// When all ranks have said that they are done, nobody copies any more. What was sent to this rank
// has arrived when its services have got the order to close.
void PeerWindow::close(const Exchange& exchange, std::chrono::milliseconds timeout) {
  check_open("close", rank());
  const TimePoint deadline = Clock::now() + timeout;
  Tasks tasks;
  for (int r = 0; r < group_->world_size(); ++r) {
    if (sides_[index(r)].is_direct) continue;
    for (auto& task : order(r, {WindowOrder::Kind::kClose, 0, 0}, nullptr, timeout)) {
      tasks.push_back(std::move(task));
    }
  }
  const std::byte nothing{};
  exchange(std::span(&nothing, 1));
  tasks.insert(tasks.end(), services_.begin(), services_.end());
  for (const auto& task : tasks) {
    if (!runtime_->wait(*task, deadline)) {
      throw Error(ErrorCode::kTimeout, text("close: " + task->name() + " did not end"));
    }
    if (task->error()) throw *task->error();
  }
  is_closed_ = true;
  memory_->board->close();
}

}  // namespace q7x2
