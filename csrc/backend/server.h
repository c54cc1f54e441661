// Server: a process of a job that has no rank, and adds up what the ranks send it.
//
// It announces itself in the job's store (transport/bootstrap/server_roll.h), and polls for
// invitations. Each group that invites it gets a thread. The thread meets the ranks in a server
// group (backend/server_group_setup.h), and carries out rank 0's orders until the ranks have left
// (servers/server_group.h). Several groups are served at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/c10d_store.h"
#include "backend/torch_compat.h"
#include "servers/slot_pool.h"
#include "transport/bootstrap/server_roll.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class Server {
 public:
  /// Announces the server. `store`: the job's, with any prefix. `pool`: the memory for what ranks
  /// send. Throws Error(kTransport) if the store does not answer, Error(kInvalidArgument) if the
  /// name is not valid.
  Server(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, SlotPool pool);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int64_t number() const { return seat_->number(); }
  /// Polls for invitations for `duration`. Returns false if the store is gone, and the job with it.
  /// Throws Error(kMismatch) if the job has another secret.
  bool look(std::chrono::milliseconds duration);
  /// Leaves all groups in good order, and withdraws the announcement. Idempotent.
  void leave();
  /// What has happened since the last call: one sentence per event, for people.
  std::vector<std::string> take_news();

 private:
  /// One server group and its thread.
  struct Service {
    std::thread thread;
    std::shared_ptr<Group> group;  // null while the group is being made
    std::atomic<bool> is_over{false};
    bool must_announce = false;  // a group gave up this server, although it is alive
  };

  /// `number`: this server's number when it was invited.
  void serve(Service& service, const std::string& meeting, int64_t number);
  void meet(Service& service, const ServerMeeting& meeting);
  void end_services(bool all);
  void tell(std::string sentence);

  const std::shared_ptr<Runtime> runtime_;
  const c10::intrusive_ptr<c10d::Store> root_;
  const std::shared_ptr<SlotPool> pool_;
  C10dStore keys_;
  std::unique_ptr<ServerSeat> seat_;
  bool has_left_ = false;
  bool store_is_gone_ = false;
  std::list<std::unique_ptr<Service>> services_;

  // Guards `is_leaving_` and `news_`, and `group` and `must_announce` of services.
  std::mutex mutex_;
  bool is_leaving_ = false;
  std::vector<std::string> news_;
};

}  // namespace q7x2
