#include "fibres/runner.h"

#include <link.h>

#include <algorithm>
#include <exception>
#include <utility>

#if defined(Q7X2_FIBRES_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace q7x2::fibres {
namespace {

/// Where `static thread_local` variables of this program's own file are, for the calling thread:
/// __shared__ is such a variable.
std::pair<const void*, size_t> thread_locals() {
  std::pair<const void*, size_t> found = {nullptr, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
          *static_cast<std::pair<const void*, size_t>*>(out) = {info->dlpi_tls_data,
                                                                info->dlpi_phdr[i].p_memsz};
        }
        return 1;  // the program itself comes first
      },
      &found);
  return found;
}

}  // namespace

void release(void* at) {
#if defined(Q7X2_FIBRES_TSAN)
  __tsan_release(at);
#else
  static_cast<void>(at);
#endif
}
void acquire(void* at) {
#if defined(Q7X2_FIBRES_TSAN)
  __tsan_acquire(at);
#else
  static_cast<void>(at);
#endif
}

std::vector<unsigned> Runner::order_of(unsigned count) {
  std::vector<unsigned> numbers(count);
  for (unsigned i = 0; i < count; ++i) numbers[i] = i;
  if (order.kind == Order::Kind::kBackward) std::reverse(numbers.begin(), numbers.end());
  if (order.kind == Order::Kind::kRandom) std::shuffle(numbers.begin(), numbers.end(), random_);
  return numbers;
}

void Runner::run(const char* what, unsigned blocks, unsigned threads, size_t shared_bytes,
                 const std::function<void()>& kernel) {
  if (running) throw KernelError(std::string(what) + ": a kernel was started within a kernel");
  if (blocks == 0 || threads == 0 || threads > kMostThreads) {
    throw KernelError(std::string(what) + ": no GPU runs " + std::to_string(blocks) +
                      " blocks of " + std::to_string(threads) + " threads");
  }
  what_ = what;
  grid = {blocks, 1, 1};
  block = {threads, 1, 1};
  random_.seed(order.seed);
  while (threads_.size() < threads) {
    threads_.push_back(std::make_unique<Thread>(stacks_.stack(threads_.size())));
  }
  dynamic.resize((shared_bytes + 15) / 16 * 16 + 16);
  auto* aligned = dynamic_shared();
  accesses_.begin_launch(serial_ + 1);
  accesses_.set_shared(aligned, shared_bytes, false);
  const auto [locals, local_bytes] = thread_locals();
  accesses_.set_shared(locals, local_bytes, true);
  problem_.clear();
  running = true;
  for (const unsigned index : order_of(blocks)) {
    block_index = {index, 0, 0};
    std::fill(dynamic.begin(), dynamic.end(), std::byte{0xA5});
    run_block(kernel);
    if (!problem_.empty()) break;
  }
  running = false;
  if (!problem_.empty()) throw KernelError(problem_);
}

void Runner::run_block(const std::function<void()>& kernel) {
  ++serial_;
  epoch_ = 0;
  over_ = 0;
  release(&ends_[0]);
  for (unsigned i = 0; i < block.x; ++i) {
    Thread& thread = *threads_[i];
    thread.state = State::kReady;
    thread.moment = {serial_, 0, i, time_, {}};
    thread.moment.known.fill(time_);
    thread.fibre.start([this, &kernel] {
      acquire(&ends_[0]);
      std::string thrown;
      try {
        kernel();
      } catch (const std::exception& error) {
        thrown = error.what();
      }
      if (!thrown.empty())
        fail(std::move(thrown));  // not in the handler, which it would never leave
      release(&ends_[1]);
      self().state = State::kOver;
    });
  }
  turns_ = order_of(block.x);
  turn_ = 0;
  while (problem_.empty() && over_ < block.x) {
    unsigned next = 0;
    if (choose(&next)) {
      step(next);
    } else {
      pass_block_barrier();
    }
  }
  acquire(&ends_[1]);
}

/// The threads take turns; a random order makes new turns every time round.
bool Runner::choose(unsigned* thread) {
  for (unsigned tried = 0; tried < block.x; ++tried) {
    if (turn_ == turns_.size()) {
      turn_ = 0;
      if (order.kind == Order::Kind::kRandom) turns_ = order_of(block.x);
    }
    *thread = turns_[turn_++];
    if (threads_[*thread]->state == State::kReady) return true;
  }
  for (unsigned i = 0; i < block.x; ++i) {  // new turns in between may have left one out
    *thread = i;
    if (threads_[i]->state == State::kReady) return true;
  }
  return false;
}

void Runner::step(unsigned thread) {
  current = thread;
  self().fibre.resume();
  if (self().state == State::kOver) ++over_;
  if (self().state == State::kAtWarp) pass_warp_barrier(thread);
}

void Runner::wait(State state, int line) {
  self().state = state;
  self().line = line;
  release(&ends_[1]);  // a block that failed ends here
  self().fibre.suspend();
}

void Runner::fail(std::string problem) {
  {
    // Nothing on this stack is destroyed any more, so nothing there may own memory.
    const std::string taken = std::move(problem);
    if (problem_.empty()) {
      problem_ = std::string(what_) + ", block " + std::to_string(block_index.x) + ": " + taken;
    }
  }
  release(&ends_[1]);
  while (true) self().fibre.suspend();  // nothing runs any more: see run_block
}

void Runner::note(const void* address, size_t bytes, AccessKind kind) {
  if (stacks_.contains(address)) {
    const size_t owner = stacks_.index_of(address);
    if (owner == current) return;
    fail("thread " + std::to_string(current) + " touches local memory of thread " +
         std::to_string(owner));
  }
  std::string problem = accesses_.note(self().moment, address, bytes, kind);
  if (!problem.empty()) fail(std::move(problem));
}

/// All threads that are left must be at it, at one line. One that waits for a warp waits for a lane
/// that has ended since.
void Runner::pass_block_barrier() {
  for (unsigned i = 0; i < block.x && problem_.empty(); ++i) {
    if (threads_[i]->state == State::kAtWarp) pass_warp_barrier(i);
  }
  if (!problem_.empty()) return;
  const Thread* first = nullptr;
  votes = 0;
  for (unsigned i = 0; i < block.x; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == State::kOver) continue;
    if (first == nullptr) first = &thread;
    if (thread.state != State::kAtBlock || thread.line != first->line) {
      problem_ = std::string(what_) + ", block " + std::to_string(block_index.x) +
                 ": threads wait for each other: thread " + std::to_string(first->moment.thread) +
                 " at line " + std::to_string(first->line) + ", thread " + std::to_string(i) +
                 " at line " + std::to_string(thread.line);
      return;
    }
    votes += thread.vote ? 1 : 0;
  }
  ++epoch_;
  ++time_;
  for (unsigned i = 0; i < block.x; ++i) {
    Thread& thread = *threads_[i];
    if (thread.state == State::kOver) continue;
    thread.state = State::kReady;
    thread.moment.epoch = epoch_;
    thread.moment.time = time_;
    thread.moment.known.fill(time_);
  }
}

/// Lets the lanes of a mask go if all of them have come.
void Runner::pass_warp_barrier(unsigned arrived) {
  const unsigned base = arrived / kWarp * kWarp;
  const Thread& caller = *threads_[arrived];
  const uint32_t mask = caller.mask;
  WarpValues values = {};
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const unsigned index = base + lane;
    if (index >= block.x || threads_[index]->state == State::kOver) {
      problem_ = std::string(what_) + ", block " + std::to_string(block_index.x) + ", line " +
                 std::to_string(caller.line) + ": the mask of thread " + std::to_string(arrived) +
                 " names lane " + std::to_string(lane) + ", which does not run";
      return;
    }
    const Thread& other = *threads_[index];
    if (other.state != State::kAtWarp || other.mask != mask || other.line != caller.line) return;
    values[lane] = other.brought;
  }
  ++time_;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Thread& thread = *threads_[base + lane];
    thread.received = values;
    thread.state = State::kReady;
    thread.moment.time = time_;
    for (unsigned other = 0; other < kWarp; ++other) {
      if ((mask >> other & 1) != 0) thread.moment.known[other] = time_;
    }
  }
}

}  // namespace q7x2::fibres
