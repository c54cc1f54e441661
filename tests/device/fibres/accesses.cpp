#include "fibres/accesses.h"

namespace q7x2::fibres {
namespace {

constexpr uint32_t kManyWarps = ~uint32_t{0};
constexpr size_t kMostPages = 2000;  // of 60 KiB each

const char* to_string(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "reads";
    case AccessKind::kWrite:
      return "writes";
    default:
      return "changes atomically";
  }
}

}  // namespace

void Accesses::begin_launch(uint32_t first_block) {
  first_block_ = first_block;
  if (pages_.size() <= kMostPages) return;
  pages_.clear();
  last_page_ = ~uintptr_t{0};
}

void Accesses::set_shared(const void* begin, size_t bytes, bool statics) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  (statics ? statics_ : shared_) = {address, address + bytes};
}

Accesses::Page& Accesses::page_of(uintptr_t address) {
  const uintptr_t number = address / kPage;
  if (number != last_page_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    last_page_ = number;
    last_ = page.get();
  }
  return *last_;
}

bool Accesses::known(const Seen& seen, const Moment& now, bool shared) const {
  if (seen.lanes == 0 || seen.block < first_block_) return true;
  if (seen.many_blocks || seen.block != now.block) return shared;
  if (seen.epoch < now.epoch) return true;
  if (seen.warp != now.thread / kWarp) return false;
  const uint32_t self = 1u << now.thread % kWarp;
  for (uint32_t rest = seen.lanes & ~self; rest != 0; rest &= rest - 1) {
    if (seen.time >= now.known[static_cast<size_t>(__builtin_ctz(rest))]) return false;
  }
  return true;
}

void Accesses::merge(Seen& seen, const Moment& now, bool shared) {
  const uint32_t warp = now.thread / kWarp;
  const uint32_t lane = 1u << now.thread % kWarp;
  const bool other_block = seen.lanes != 0 && seen.block >= first_block_ && seen.block != now.block;
  if (other_block && !shared) {
    seen.block = now.block;
    seen.many_blocks = true;
    return;
  }
  if (known(seen, now, shared)) {
    seen = {now.block, now.epoch, now.time, lane, warp, false};
    return;
  }
  if (seen.warp != warp) seen.warp = kManyWarps;
  seen.lanes |= lane;
  if (seen.time < now.time) seen.time = now.time;
}

std::string Accesses::note(const Moment& now, const void* address, size_t bytes, AccessKind kind) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const bool shared = shared_.contains(begin) || statics_.contains(begin);
  for (uintptr_t at = begin; at < begin + bytes; ++at) {
    Byte& byte = page_of(at)[at % kPage];
    for (const AccessKind other : {AccessKind::kWrite, AccessKind::kAtomic, AccessKind::kRead}) {
      if (other == kind && kind != AccessKind::kWrite) continue;
      const Seen& seen = byte.seen[static_cast<size_t>(other)];
      if (known(seen, now, shared)) continue;
      std::string text = "thread " + std::to_string(now.thread) + " " + to_string(kind) +
                         (shared ? " shared" : "") + " memory that ";
      if (seen.many_blocks || seen.block != now.block) {
        text += "another block";
      } else if (seen.warp == kManyWarps || (seen.lanes & (seen.lanes - 1)) != 0) {
        text += "several threads";
      } else {
        text += "thread " + std::to_string(seen.warp * kWarp +
                                           static_cast<uint32_t>(__builtin_ctz(seen.lanes)));
      }
      return text + " " + to_string(other) + ", without a barrier between them";
    }
    if (shared && kind != AccessKind::kWrite) {
      const auto written = [&](AccessKind how) {
        const Seen& seen = byte.seen[static_cast<size_t>(how)];
        return seen.lanes != 0 && seen.block == now.block;
      };
      if (!written(AccessKind::kWrite) && !written(AccessKind::kAtomic)) {
        return "thread " + std::to_string(now.thread) + " " + to_string(kind) +
               " shared memory that no thread of its block has written";
      }
    }
    merge(byte.seen[static_cast<size_t>(kind)], now, shared);
  }
  return {};
}

}  // namespace q7x2::fibres
