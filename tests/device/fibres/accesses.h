// Which thread touched which byte since when: finds two threads that touch the same memory without
// a barrier between them.
//
// The compiler calls `__tsan_read4` and its like at every access of code that it compiles with
// -fsanitize=thread. This stand-in defines these functions itself (access_callbacks.cpp), so it
// needs no library, runs in every build, and knows what only a GPU has: barriers of blocks and of
// warps, blocks without any order, memory that a block shares, and local memory of a thread.
//
// Time is counted in barriers. A thread knows what others of its block did before the last block
// barrier, and what lanes of its warp did before the last warp barrier of both. Two accesses to a
// byte race if neither is known to the other, at least one writes, and at least one is not atomic.
// So what is found does not depend on the order in which the threads happened to run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace q7x2::fibres {

inline constexpr unsigned kWarp = 32;

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

/// A thread of a grid, and what it knows of others.
struct Moment {
  uint32_t block = 0;   ///< serial number, over all launches
  uint32_t epoch = 0;   ///< block barriers that were passed
  uint32_t thread = 0;  ///< within the block
  uint32_t time = 0;    ///< of its last barrier of any kind
  /// What lane i of its warp did before this time is known.
  std::array<uint32_t, kWarp> known = {};
};

class Accesses {
 public:
  /// Blocks from this serial number on are unordered; earlier ones are over.
  void begin_launch(uint32_t first_block);
  /// Memory that every block has for itself.
  void set_shared(const void* begin, size_t bytes, bool statics);
  /// Notes an access. Returns what is wrong with it, or nothing.
  std::string note(const Moment& now, const void* address, size_t bytes, AccessKind kind);

 private:
  /// The last accesses of one kind that are not ordered among themselves.
  struct Seen {
    uint32_t block = 0;
    uint32_t epoch = 0;
    uint32_t time = 0;
    uint32_t lanes = 0;  // a bit for each
    uint32_t warp = 0;
    bool many_blocks = false;
  };
  struct Byte {
    std::array<Seen, 3> seen = {};
  };
  static constexpr size_t kPage = 1024;
  using Page = std::array<Byte, kPage>;

  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    bool contains(uintptr_t address) const { return address >= begin && address < end; }
  };

  bool known(const Seen& seen, const Moment& now, bool shared) const;
  void merge(Seen& seen, const Moment& now, bool shared);
  Page& page_of(uintptr_t address);

  uint32_t first_block_ = 0;
  Range shared_;
  Range statics_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uintptr_t last_page_ = ~uintptr_t{0};
  Page* last_ = nullptr;
};

}  // namespace q7x2::fibres
