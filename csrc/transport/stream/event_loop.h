// EventLoop: which descriptors are ready, and who is told.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <unordered_map>

#include "base/owned_fd.h"

namespace q7x2 {

class EventHandler {
 public:
  virtual void on_ready(uint32_t events) = 0;

 protected:
  ~EventHandler() = default;
};

class EventLoop {
 public:
  /// Throws Error(kTransport).
  EventLoop();

  /// Readable when somebody must be told.
  int fd() const { return epoll_; }
  /// Returns the number of the entry; 0: the kernel refuses. The handler may remove itself, and
  /// others, when it is told.
  uint64_t add(int fd, uint32_t events, EventHandler& handler);
  void change(uint64_t entry, int fd, uint32_t events);
  void remove(uint64_t entry, int fd);
  /// Calls each handler that is ready once. Does not wait. Returns false if none was ready.
  bool dispatch();

 private:
  OwnedFd epoll_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, EventHandler*> handlers_;
};

/// An entry that goes with its owner.
class EventEntry {
 public:
  EventEntry() = default;
  EventEntry(const EventEntry&) = delete;
  EventEntry& operator=(const EventEntry&) = delete;
  ~EventEntry() { remove(); }

  /// False: the kernel refuses.
  bool add(EventLoop& loop, int fd, uint32_t events, EventHandler& handler);
  /// For what it watches from now on.
  void set(uint32_t events);
  void remove();

 private:
  EventLoop* loop_ = nullptr;
  uint64_t entry_ = 0;
  int fd_ = -1;
  uint32_t events_ = 0;
};

}  // namespace q7x2
