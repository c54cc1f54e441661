#include "transport/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <string_view>

#include "fabric/host.h"
#include "transport/control.h"
#include "transport/engine.h"
#include "transport/tag.h"

namespace q7x2 {
namespace {

// Collectives of one group in progress at once. Below the cycle of the sequence number in tags.
constexpr int kMaxRunning = 64;
// How many collectives back a message is recognised as one that was never received.
constexpr uint64_t kLeftoverWindow = 256;
// A collective that has waited for so long asks those it waits for whether they made the same call.
constexpr std::chrono::milliseconds kPatience{500};

}  // namespace

Group::Group(Engine& engine, int rank, int world_size, std::string name)
    : engine_(engine),
      rank_(rank),
      world_size_(world_size),
      name_(std::move(name)),
      peers_(static_cast<size_t>(world_size), nullptr),
      departed_(static_cast<size_t>(world_size), false),
      wires_(static_cast<size_t>(world_size), Wire::kShared),
      member_at_(static_cast<size_t>(world_size), -1) {}

std::shared_ptr<Group> Group::create(Engine& engine, int rank, int world_size,
                                     const std::string& name, const Exchange& exchange,
                                     const Await& await, bool eager,
                                     const std::string& algorithms) {
  if (world_size < 1 || world_size > tag::kMaxRanks || rank < 0 || rank >= world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "a group needs 1 to " + std::to_string(tag::kMaxRanks) +
                    " ranks and a rank among them; got rank " + std::to_string(rank) + " of " +
                    std::to_string(world_size));
  }
  const auto destroy = [](Group* group) {
    // The memory that it maps and its connections are the parent's.
    if (!group->engine_.forked()) delete group;
  };
  std::shared_ptr<Group> group(new Group(engine, rank, world_size, name), destroy);
  Card mine;
  {
    const Engine::Lock lock(engine);
    group->slot_ = engine.register_group(*group);
    mine.renewed = engine.renewed();
  }
  mine.process = engine.process();
  mine.pid = ::getpid();
  mine.slot = static_cast<uint16_t>(group->slot_);
  mine.world_size = static_cast<uint16_t>(world_size);
  mine.host_key = host_key();
  char hostname[256] = {};
  ::gethostname(hostname, sizeof(hostname) - 1);
  mine.hostname = hostname;
  mine.address = engine.worker().address();
  mine.beside = engine.nics_beside();
  mine.transports = join_list(engine.transports());
  mine.algorithms = algorithms;
  // Before it is known whether anyone shares this host, since that spares an exchange.
  std::unique_ptr<HostChannel> channel;
  if (world_size > 1 && HostChannel::is_cheap(engine.context_)) {
    channel = group->new_channel(1);
  }
  if (channel) {
    mine.memory = channel->key();
  }

  const std::vector<std::string> bytes = exchange("card", mine.encode(), [] {});
  if (bytes.size() != static_cast<size_t>(world_size)) {
    throw Error(ErrorCode::kMismatch, "group '" + name + "' of " + std::to_string(world_size) +
                                          " ranks got " + std::to_string(bytes.size()) + " cards");
  }
  std::vector<Card> cards;
  cards.reserve(bytes.size());
  for (const std::string& card : bytes) {
    cards.push_back(Card::decode(card));
    const Card& last = cards.back();
    if (last.world_size != world_size || last.slot >= tag::kMaxGroups) {
      throw Error(ErrorCode::kMismatch, "rank " + std::to_string(cards.size() - 1) + " of group '" +
                                            name + "' was told a world size of " +
                                            std::to_string(last.world_size) + ", this rank " +
                                            std::to_string(world_size));
    }
    if (const Card& first = cards.front(); last.algorithms != first.algorithms) {
      throw Error(
          ErrorCode::kMismatch,
          "ranks 0 and " + std::to_string(cards.size() - 1) + " of group '" + name +
              "' are confined to different algorithms, '" + first.algorithms + "' and '" +
              last.algorithms +
              "': Q7X2_ALGO and q7x2.Options(algorithms=...), and the files of Q7X2_PLAN, must be "
              "the same on all ranks");
    }
  }

  if (const Card& own = cards[static_cast<size_t>(rank)];
      own.process != mine.process || own.slot != mine.slot) {
    throw Error(ErrorCode::kMismatch, "the card of rank " + std::to_string(rank) + " in group '" +
                                          name + "' is another process's: two ranks " +
                                          std::to_string(rank) + "?");
  }
  {
    const Engine::Lock lock(engine);
    for (int r = 0; r < world_size; ++r) {
      const Card& card = cards[static_cast<size_t>(r)];
      if (r == rank) {
        continue;
      }
      if (card.process == mine.process) {
        throw Error(ErrorCode::kMismatch, "ranks " + std::to_string(rank) + " and " +
                                              std::to_string(r) + " of group '" + name +
                                              "' are the same process");
      }
      // Both ends know both cards, and so agree on the connection.
      const uint32_t incarnation =
          std::max(mine.incarnation(card.process), card.incarnation(mine.process));
      group->peers_[static_cast<size_t>(r)] =
          &engine.add_peer(card, card.host_key == mine.host_key, incarnation);
    }
    group->cards_ = std::move(cards);
    engine.group_ready();
    for (int r = 0; r < world_size; ++r) {
      const Peer* peer = group->peers_[static_cast<size_t>(r)];
      if (peer != nullptr && peer->failed) {
        group->peer_failed(r, peer->reason);  // since the cards were written
      }
    }
  }
  group->share_memory(std::move(channel), exchange, await);
  group->find_private_links(exchange);
  if (eager) {
    group->connect_all();
  }
  return group;
}

Group::~Group() {
  leave();
}

bool Group::same_host(int rank) const {
  return rank == rank_ || peers_[static_cast<size_t>(rank)]->same_host;
}

int Group::ranks_on_host() const {
  int count = 0;
  for (int r = 0; r < world_size_; ++r) {
    count += same_host(r) ? 1 : 0;
  }
  return count;
}

std::string Group::describe(int rank) const {
  const Card& card = cards_[static_cast<size_t>(rank)];
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(card.pid) + " on " +
         card.hostname + ")";
}

void Group::connect_all() {
  const Engine::Lock lock(engine_);
  // Each rank starts with its successor, so that no rank is called by all at once.
  for (int step = 1; step < world_size_; ++step) {
    ensure_connected((rank_ + step) % world_size_);
  }
}

std::vector<std::string> Group::transports(int rank) {
  if (rank < 0 || rank >= world_size_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(world_size_));
  }
  const Engine::Lock lock(engine_);
  const Peer* peer = peers_[static_cast<size_t>(rank)];
  return peer != nullptr && peer->endpoint ? peer->endpoint->transports()
                                           : std::vector<std::string>();
}

std::vector<std::shared_ptr<Task>> Group::tasks() {
  const Engine::Lock lock(engine_);
  std::vector<std::shared_ptr<Task>> mine;
  std::copy_if(engine_.active_.begin(), engine_.active_.end(), std::back_inserter(mine),
               [this](const auto& task) { return &task->group() == this; });
  return mine;
}

std::vector<std::shared_ptr<Task>> Group::collectives() {
  std::vector<std::shared_ptr<Task>> mine = tasks();
  std::erase_if(mine, [](const auto& task) { return task->done() || !task->takes_turn(); });
  return mine;
}

std::optional<Error> Group::error() {
  const Engine::Lock lock(engine_);
  return error_;
}

void Group::check() {
  if (const std::optional<Error> failure = error()) {
    throw Error(*failure);
  }
}

void Group::abort(const Error& error) {
  const Engine::Lock lock(engine_);
  fail(error);
}

void Group::leave() {
  const Engine::Lock lock(engine_);
  if (closed_) {
    return;
  }
  closed_ = true;
  fail_tasks(Error(ErrorCode::kAborted, "the group was shut down while this was in progress"));
  for (int r = 0; r < world_size_ && !cards_.empty(); ++r) {
    Peer* peer = peers_[static_cast<size_t>(r)];
    if (peer != nullptr && peer->endpoint && !peer->fails_at && !error_) {
      engine_.send_control(*peer, control_to(r, ControlType::kGoodbye));
    }
  }
  engine_.unregister_group(*this);
}

Control Group::control_to(int rank, ControlType type) const {
  Control control;
  control.type = type;
  control.slot = static_cast<uint16_t>(slot_at(rank));
  control.sender_slot = static_cast<uint16_t>(slot_);
  control.sender = rank_;
  control.receiver = rank;
  control.process = engine_.process();
  return control;
}

bool Group::ensure_connected(int rank) {
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  const bool fresh = !peer.endpoint;
  if (!engine_.connect(peer)) {
    return false;
  }
  if (fresh) {
    engine_.send_control(peer, control_to(rank, ControlType::kHello));
  }
  return true;
}

void Group::send(Task& task, uint32_t token, int destination, uint64_t tag, const void* data,
                 size_t length, Wire wire) {
  if (departed_[static_cast<size_t>(destination)]) {
    task.stranded(left_error(destination, task));
    return;
  }
  PendingRequest* pending = engine_.new_request(task, token, destination, /*is_receive=*/false);
  pending->wire = wire;
  if (!ensure_connected(destination) || !ensure_rail(destination, wire)) {
    engine_.completions_.add(*pending, UCS_ERR_UNREACHABLE);
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = Engine::on_sent;
  param.user_data = pending;
  Peer& peer = *peers_[static_cast<size_t>(destination)];
  const UcpEndpoint& endpoint = wire == Wire::kPrivate ? *peer.rail_endpoint : *peer.endpoint;
  void* request = ucp_tag_send_nbx(endpoint.get(), data, length,
                                   tag | tag::slot_bits(slot_at(destination)), &param);
  if (UCS_PTR_IS_PTR(request)) {
    pending->request = request;
  } else {
    engine_.completions_.add(*pending, UCS_PTR_STATUS(request), length, tag);
  }
}

void Group::receive(Task& task, uint32_t token, int source, uint64_t tag, uint64_t mask, void* data,
                    size_t length, Wire wire) {
  PendingRequest* pending = engine_.new_request(task, token, source, /*is_receive=*/true);
  pending->wire = wire;
  // Connected in both directions, so that a death of the source is noticed. Where it cannot be
  // reached any more, what it had sent before is still received.
  if (source >= 0 && !departed_[static_cast<size_t>(source)]) {
    ensure_connected(source);
    ensure_rail(source, wire);
  }
  const UcpWorker& worker =
      wire == Wire::kPrivate ? peers_[static_cast<size_t>(source)]->rail->worker : engine_.worker_;
  ucp_request_param_t param{};
  // Completion always comes by the callback, if need be from inside the call: UCX 1.13 does not say
  // what a receive brought that completes at once.
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = Engine::on_received;
  param.user_data = pending;
  void* request = ucp_tag_recv_nbx(worker.get(), data, length, tag, mask, &param);
  if (UCS_PTR_IS_ERR(request)) {
    engine_.completions_.add(*pending, UCS_PTR_STATUS(request));
    return;
  }
  if (pending->completed) {
    return;
  }
  pending->request = request;
  if (source >= 0 && departed_[static_cast<size_t>(source)]) {
    // All that it ever sent has arrived before its goodbye.
    task.stranded(left_error(source, task));
  }
}

Error Group::left_error(int rank, const Task& task) const {
  return Error(ErrorCode::kPeerLeft,
               describe(rank) + " has left the group, but " + task.name() + " needs it", rank);
}

void Group::fail(const Error& error) {
  if (closed_ || error_) {
    return;
  }
  error_ = error;
  fail_tasks(error);
  for (int r = 0; r < world_size_ && !cards_.empty(); ++r) {
    Peer* peer = peers_[static_cast<size_t>(r)];
    if (peer != nullptr && !departed_[static_cast<size_t>(r)] && !peer->fails_at &&
        ensure_connected(r)) {
      Control control = control_to(r, ControlType::kAbort);
      control.code = error.code();
      control.subject = error.rank();
      control.text = error.what();
      engine_.send_control(*peer, control);
    }
  }
}

void Group::fail_tasks(const Error& error) {
  waiting_.clear();
  std::vector<std::shared_ptr<Task>> mine;
  for (const auto& task : engine_.active_) {
    if (&task->group() == this && !task->done()) {
      mine.push_back(task);
    }
  }
  for (const auto& task : mine) {
    task->fail(Error(error.code(), task->name() + ": " + error.what(), error.rank()));
  }
}

void Group::handle(const Control& control) {
  switch (control.type) {
    case ControlType::kHello:
      if (!closed_ && !error_) {
        ensure_connected(control.sender);
      }
      return;
    case ControlType::kGoodbye:
      peer_left(control.sender);
      return;
    case ControlType::kAbort:
      fail(Error(control.code, control.text, control.subject));
      return;
    case ControlType::kInquiry:
      answer(control);
      return;
  }
}

// -------------------------------------------------------------------------------- shared memory

/// Null where there is no shared memory to be had: the messages go through UCX's transports.
std::unique_ptr<HostChannel> Group::new_channel(int members) {
  try {
    const Engine::Lock lock(engine_);
    return std::make_unique<HostChannel>(engine_.context_, engine_.process(), members);
  } catch (const Error&) {
    return nullptr;
  }
}

/// Whether ranks that could share memory have none yet. All ranks of the group say the same.
bool Group::memory_comes_late() const {
  struct Host {
    size_t ranks = 0;
    bool lacks = false;
  };
  std::map<std::string_view, Host> hosts;
  for (const Card& card : cards_) {
    Host& host = hosts[card.host_key];
    ++host.ranks;
    host.lacks |= card.memory.empty();
  }
  return std::any_of(hosts.begin(), hosts.end(), [](const auto& each) {
    const Host& host = each.second;
    return host.lacks && host.ranks > 1 && host.ranks <= HostChannel::kMaxMembers;
  });
}

// That two ranks have the same host key says that they should be able to share memory; whether they
// can is tried, and both must have succeeded. They tell each other in the memory itself: who has
// mapped a segment reads there whether its owner has mapped this rank's.
void Group::share_memory(std::unique_ptr<HostChannel> channel, const Exchange& exchange,
                         const Await& await) {
  for (int r = 0; r < world_size_; ++r) {
    if (same_host(r)) {
      members_.emplace_back().rank = r;
    }
  }
  const auto count = static_cast<int>(members_.size());
  const bool shareable = count > 1 && count <= HostChannel::kMaxMembers;
  if (count > usable_cpus()) {
    engine_.crowded_ = true;
  }
  if (memory_comes_late()) {
    std::string late;
    if (shareable && !channel) {
      channel = new_channel(count);
      late = channel ? channel->key() : "";
    }
    const std::vector<std::string> keys = exchange("memory", late, [this] { check(); });
    for (size_t r = 0; r < cards_.size(); ++r) {
      if (cards_[r].memory.empty()) {
        cards_[r].memory = keys[r];
      }
    }
  }
  if (!shareable || !channel) {
    return;
  }
  const auto rank_at = [this](int member) { return members_[static_cast<size_t>(member)].rank; };
  int self = 0;
  while (rank_at(self) != rank_) {
    ++self;
  }
  channel->join(self, count);
  for (int step = 1; step < count; ++step) {
    // Each rank starts with its successor, so that no rank is called by all at once.
    const int member = (self + step) % count;
    const auto r = static_cast<size_t>(rank_at(member));
    if (cards_[r].memory.empty()) {
      continue;
    }
    try {
      const Engine::Lock lock(engine_);
      // Without a hello: who maps this rank's memory connects to it as well.
      if (engine_.connect(*peers_[r])) {
        channel->map(member, *peers_[r]->endpoint, cards_[r].memory, cards_[r].process);
      }
    } catch (const Error&) {
      // These two talk through UCX's transports.
    }
    channel->tell(member);
  }
  int next = 0;
  const auto missing = [&] {
    while (next < count && (!channel->is_mapped(next) || channel->told_by(next))) {
      ++next;
    }
    return next < count ? rank_at(next) : -1;
  };
  await(missing, [this] { check(); });

  const Engine::Lock lock(engine_);
  for (int member = 0; member < count; ++member) {
    if (channel->is_mapped(member) && *channel->told_by(member)) {
      channel->open(member);
      member_at_[static_cast<size_t>(rank_at(member))] = member;
    } else if (Peer* peer = peers_[static_cast<size_t>(rank_at(member))]; peer != nullptr) {
      engine_.send_control(*peer, control_to(rank_at(member), ControlType::kHello));
    }
  }
  channel_ = std::move(channel);
}

bool Group::send_shared(Task& task, uint32_t token, int destination, uint64_t tag, const void* data,
                        size_t length, int ticket) {
  if (departed_[static_cast<size_t>(destination)]) {
    task.stranded(left_error(destination, task));
    return false;
  }
  const int number = member_at_[static_cast<size_t>(destination)];
  Member& member = members_[static_cast<size_t>(number)];
  HostChannel::Message message;
  message.tag = tag;
  message.length = static_cast<uint32_t>(length);
  message.ticket = static_cast<uint16_t>(ticket);
  if (ticket != HostChannel::kNoTicket) {
    message.staged = static_cast<const std::byte*>(data);
    channel_->expect_return(number, ticket);
  } else if (length > 0) {
    std::memcpy(message.carried.data(), data, length);
  }
  if (member.outgoing.empty() && channel_->send(number, message)) {
    wake(number);
    return true;
  }
  member.outgoing.push_back(
      {message, engine_.new_request(task, token, destination, /*is_receive=*/false)});
  return false;
}

std::optional<HostChannel::Message> Group::receive_shared(Task& task, uint32_t token, int source,
                                                          uint64_t tag) {
  Member& member = members_[static_cast<size_t>(member_at_[static_cast<size_t>(source)])];
  const auto found = std::find_if(
      member.unexpected.begin(), member.unexpected.end(),
      [&](const auto& message) { return ((message.tag ^ tag) & tag::kSharedMask) == 0; });
  if (found != member.unexpected.end()) {
    HostChannel::Message message = *found;
    member.unexpected.erase(found);
    return message;
  }
  PendingRequest* pending = engine_.new_request(task, token, source, /*is_receive=*/true);
  member.expected.push_back({tag, pending});
  if (running_ == 0) {
    engine_.update_sharing(*this);
  }
  if (departed_[static_cast<size_t>(source)]) {
    // All that it ever sent was taken when it left.
    task.stranded(left_error(source, task));
  }
  return std::nullopt;
}

void Group::give_back(int source, const HostChannel::Message& message) {
  if (message.ticket != HostChannel::kNoTicket) {
    const int member = member_at_[static_cast<size_t>(source)];
    channel_->give_back(member, message.ticket);
    wake(member);
  }
}

void Group::wake(int member) {
  if (channel_->must_wake(member)) {
    Peer& peer = *peers_[static_cast<size_t>(members_[static_cast<size_t>(member)].rank)];
    if (peer.endpoint && !peer.fails_at) {
      engine_.send_wake(peer);
    }
  }
}

void Group::retire_staging(HostChannel::Staging staging, std::vector<int> tickets) {
  retired_.push_back({staging, std::move(tickets)});
  free_returned();
}

void Group::free_returned() {
  std::erase_if(retired_, [this](Retired& retired) {
    std::erase_if(retired.tickets, [this](int ticket) {
      const bool returned = channel_->is_returned(ticket);
      if (returned) {
        channel_->free_ticket(ticket);
      }
      return returned;
    });
    if (!retired.tickets.empty()) {
      return false;
    }
    channel_->free(retired.staging);
    return true;
  });
}

bool Group::progress_shared() {
  bool any = false;
  try {
    for (int number = 0; number < channel_->members(); ++number) {
      if (!channel_->is_open(number)) {
        continue;
      }
      Member& member = members_[static_cast<size_t>(number)];
      while (const auto message = channel_->take(number)) {
        any = true;
        dispatch(member, *message);
      }
      while (!member.outgoing.empty()) {
        const Outgoing& out = member.outgoing.front();
        if (!channel_->send(number, out.message)) {
          any = true;  // looks again instead of sleeping: nobody wakes the sender for this
          break;
        }
        engine_.completions_.add(*out.send, UCS_OK, out.message.length, out.message.tag);
        member.outgoing.pop_front();
        wake(number);
        any = true;
      }
    }
    if (!stalled_.empty()) {
      std::vector<Task*> stalled;
      stalled.swap(stalled_);
      for (Task* task : stalled) {
        any |= !task->done() && task->stalled();
      }
    }
    if (!waiting_.empty()) {
      free_returned();
      start_waiting();
    }
  } catch (const std::exception& exception) {
    fail(failure_of(exception));
    any = true;
  }
  engine_.drain();
  return any;
}

void Group::dispatch(Member& member, const HostChannel::Message& message) {
  const auto found = std::find_if(
      member.expected.begin(), member.expected.end(),
      [&](const auto& expected) { return ((message.tag ^ expected.tag) & tag::kSharedMask) == 0; });
  if (found == member.expected.end()) {
    member.unexpected.push_back(message);
    if (const auto error = leftover_error(message.tag, member.rank, oldest_running())) {
      fail(*error);
    }
    return;
  }
  PendingRequest* pending = found->receive;
  member.expected.erase(found);
  Task& task = *pending->task;
  const uint32_t token = pending->token;
  engine_.release_request(pending);
  task.arrived(token, message);
  if (running_ == 0) {
    engine_.update_sharing(*this);
  }
}

bool Group::expects_mail() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return !member.expected.empty() || !member.outgoing.empty();
  });
}

// What a task that is over waited for. Its requests would else outlive it.
void Group::forget_shared(Task& task) {
  for (Member& member : members_) {
    std::erase_if(member.expected, [&](const Expected& expected) {
      const bool is_its = expected.receive->task == &task;
      if (is_its) {
        engine_.release_request(expected.receive);
      }
      return is_its;
    });
    std::erase_if(member.outgoing, [&](const Outgoing& out) {
      const bool is_its = out.send->task == &task;
      if (is_its) {
        engine_.release_request(out.send);
      }
      return is_its;
    });
  }
  engine_.update_sharing(*this);
}

void Group::request_failed(Task& task, int rank, Wire wire, ucs_status_t status) {
  if (wire == Wire::kPrivate && !peers_[static_cast<size_t>(rank)]->rail_in_use) {
    task.fail(Error(ErrorCode::kTransport, task.name() + ": the private link to " + describe(rank) +
                                               " does not work: " + ucs_status_string(status)));
  } else if (rank >= 0 && departed_[static_cast<size_t>(rank)]) {
    task.stranded(left_error(rank, task));
  } else if (rank >= 0) {
    engine_.peer_dying(*peers_[static_cast<size_t>(rank)], ucs_status_string(status));
  } else {
    task.fail(
        Error(ErrorCode::kTransport, task.name() + ": UCX reported " + ucs_status_string(status)));
  }
}

void Group::peer_failed(int rank, const std::string& reason) {
  if (!departed_[static_cast<size_t>(rank)]) {
    fail(Error(ErrorCode::kPeerFailed, describe(rank) + " failed: " + reason, rank));
  }
}

void Group::peer_left(int rank) {
  if (channel_) {
    progress_shared();  // what it wrote before it left
  }
  departed_[static_cast<size_t>(rank)] = true;
  std::vector<std::shared_ptr<Task>> stranded;
  for (const auto& task : engine_.active_) {
    if (&task->group() != this || task->done()) {
      continue;
    }
    for (const PendingRequest* p = task->requests_; p != nullptr; p = p->next) {
      if (p->peer == rank) {
        stranded.push_back(task);
        break;
      }
    }
  }
  for (const auto& task : stranded) {
    task->stranded(left_error(rank, *task));
  }
}

Error Group::failure_of(const std::exception& exception) const {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) {
    return *error;
  }
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {ErrorCode::kTransport,
          describe(rank_) + " could not go on: " +
              (no_memory ? "it could not allocate memory" : exception.what()),
          rank_};
}

int Group::rank_of(const Peer& peer) const {
  const auto it = std::find(peers_.begin(), peers_.end(), &peer);
  return it == peers_.end() ? -1 : static_cast<int>(it - peers_.begin());
}

void Group::submit(const std::shared_ptr<Task>& task) {
  if (task->takes_turn()) {
    // For messages; it gets this number when it begins.
    task->sequence_ = sequence_ + waiting_.size();
    sequence_ += error_ || closed_ ? 1 : 0;
  }
  if (error_) {
    task->fail(Error(error_->code(), task->name() + ": the group has failed: " + error_->what(),
                     error_->rank()));
  } else if (closed_) {
    task->fail(Error(ErrorCode::kAborted, task->name() + ": the group is shut down"));
  } else if (task->takes_turn() &&
             (running_ >= kMaxRunning || !waiting_.empty() || !task->reserve())) {
    waiting_.push_back(task);
    engine_.update_sharing(*this);
  } else {
    begin(task);
  }
}

void Group::start_waiting() {
  while (!waiting_.empty() && running_ < kMaxRunning) {
    const std::shared_ptr<Task> next = waiting_.front();
    if (!next->done()) {
      if (!next->reserve()) {
        return;
      }
      waiting_.pop_front();
      begin(next);
    } else {
      waiting_.pop_front();
    }
  }
}

// Two hosts that are both on a network beside the shared one, over interfaces of their own, have a
// private link. Every rank sees who has, since all see all cards.
std::optional<std::pair<size_t, size_t>> Group::private_network(int a, int b) const {
  const Card& one = cards_[static_cast<size_t>(std::min(a, b))];
  const Card& other = cards_[static_cast<size_t>(std::max(a, b))];
  if (one.host_key == other.host_key) {
    return std::nullopt;
  }
  auto networks = common_network(one.beside, other.beside);
  if (networks && a > b) {
    std::swap(networks->first, networks->second);
  }
  return networks;
}

void Group::find_private_links(const Exchange& exchange) {
  bool any = false;
  for (int a = 0; a < world_size_ && !any; ++a) {
    if (cards_[static_cast<size_t>(a)].beside.empty()) {
      continue;
    }
    for (int b = a + 1; b < world_size_ && !any; ++b) {
      any = has_private_link(a, b);
    }
  }
  if (!any) {
    return;
  }
  // One worker's address an interface, in the card's order.
  const std::vector<Nic>& nics = cards_[static_cast<size_t>(rank_)].beside;
  std::vector<std::string> addresses(nics.size());
  {
    const Engine::Lock lock(engine_);
    for (int r = 0; r < world_size_; ++r) {
      if (const auto networks = private_network(rank_, r)) {
        addresses[networks->first] = engine_.rail(nics[networks->first]).worker.address();
      }
    }
  }
  const std::vector<std::string> all =
      exchange("rails", encode_list(addresses), [this] { check(); });
  const Engine::Lock lock(engine_);
  for (int r = 0; r < world_size_; ++r) {
    const auto networks = private_network(rank_, r);
    if (!networks) {
      continue;
    }
    const std::vector<std::string> theirs = decode_list(all[static_cast<size_t>(r)]);
    Peer& peer = *peers_[static_cast<size_t>(r)];
    if (peer.rail == nullptr && networks->second < theirs.size()) {
      peer.rail = &engine_.rail(nics[networks->first]);
      peer.rail_address = theirs[networks->second];
    }
  }
}

void Group::use_private_link(int rank) {
  const Engine::Lock lock(engine_);
  Peer& peer = *peers_[static_cast<size_t>(rank)];
  if (peer.rail == nullptr) {
    throw Error(ErrorCode::kInternal, "there is no private link to " + describe(rank));
  }
  peer.rail_in_use = true;
  wires_[static_cast<size_t>(rank)] = Wire::kPrivate;
}

bool Group::ensure_rail(int rank, Wire wire) {
  if (wire == Wire::kShared) {
    return true;
  }
  try {
    engine_.connect_rail(*peers_[static_cast<size_t>(rank)]);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// With others in progress, the one that is complete last asks, and housekeeping before that.
std::optional<Error> Group::leftover() {
  return running_ == 1 ? leftover(sequence_) : std::nullopt;
}

// So a root that nobody else takes for the root learns of it. `oldest` is the number of the oldest
// collective that is not complete.
std::optional<Error> Group::leftover(uint64_t oldest) {
  for (const Member& member : members_) {
    for (const HostChannel::Message& message : member.unexpected) {
      if (const auto error = leftover_error(message.tag, member.rank, oldest)) {
        return error;
      }
    }
  }
  ucp_tag_recv_info_t info{};
  if (ucp_tag_probe_nb(engine_.worker_.get(), tag::base(tag::Kind::kCollective, slot_, 0),
                       tag::kKindMask | tag::kSlotMask, /*remove=*/0, &info) == nullptr) {
    return std::nullopt;
  }
  return leftover_error(info.sender_tag, tag::source_of(info.sender_tag), oldest);
}

std::optional<Error> Group::leftover_error(uint64_t tag, int sender, uint64_t oldest) const {
  const uint64_t behind = (oldest - tag::sequence_of(tag)) % tag::kSequenceCycle;
  // A sender may be far ahead, so most of the cycle means that.
  if (behind == 0 || behind > kLeftoverWindow || sender >= world_size_) {
    return std::nullopt;
  }
  return Error(ErrorCode::kMismatch,
               "ranks disagree about a collective: " + describe(sender) +
                   " sent a message in collective number " + std::to_string(oldest - behind) +
                   ", which rank " + std::to_string(rank_) +
                   " completed without it (a different root, shape or collective)",
               sender);
}

uint64_t Group::oldest_running() const {
  uint64_t oldest = sequence_;
  for (const auto& task : engine_.active_) {
    if (&task->group() == this && task->started_ && !task->done() && task->takes_turn()) {
      oldest = std::min(oldest, task->sequence_);
    }
  }
  return oldest;
}

void Group::check_leftovers() {
  if (const auto error = leftover(oldest_running())) {
    fail(*error);
  }
}

// Ranks that disagree about a call may all wait and none send, where no message tells them. So who
// has waited for long asks, and again each time that it has waited for twice as long.
void Group::inquire(TimePoint now) {
  for (const auto& task : engine_.active_) {
    if (&task->group() != this || !task->started_ || task->done() || !task->takes_turn() ||
        now < task->next_inquiry_) {
      continue;
    }
    task->next_inquiry_ = now + (now - task->submitted_);
    std::set<int> others;
    for (const PendingRequest* p = task->requests_; p != nullptr; p = p->next) {
      if (p->peer >= 0) others.insert(p->peer);
    }
    if (others.empty()) {
      // It waits until ranks of this host have read what it put into shared memory.
      for (const Member& member : members_) {
        others.insert(member.rank);
      }
      others.erase(rank_);
    }
    for (const int other : others) {
      Peer& peer = *peers_[static_cast<size_t>(other)];
      if (departed_[static_cast<size_t>(other)] || peer.fails_at) {
        continue;
      }
      Control inquiry = control_to(other, ControlType::kInquiry);
      inquiry.sequence = task->sequence_;
      inquiry.fingerprint = calls_[task->sequence_ % kRemembered];
      inquiry.text = task->name();
      engine_.send_control(peer, inquiry);
    }
  }
}

void Group::answer(const Control& inquiry) {
  const bool is_known = inquiry.sequence < sequence_ && sequence_ - inquiry.sequence <= kRemembered;
  if (is_known && calls_[inquiry.sequence % kRemembered] != inquiry.fingerprint) {
    fail(Error(ErrorCode::kMismatch,
               "ranks disagree about a collective: " + describe(inquiry.sender) +
                   " waits for a message of " + describe(rank_) + " in " + inquiry.text +
                   ", but there rank " + std::to_string(rank_) +
                   " made another call (a different collective, shape, dtype, root or reduction)",
               inquiry.sender));
  }
}

void Group::begin(const std::shared_ptr<Task>& task) {
  if (task->takes_turn()) {
    task->next_inquiry_ = task->submitted_ + kPatience;
    task->sequence_ = sequence_++;
    ++running_;
    task->started_ = true;  // from here on, its end ends its turn
    engine_.update_sharing(*this);
  }
  task->started_ = true;
  task->start();
}

void Group::task_done(Task& task) {
  if (task.started_ && task.takes_turn()) {
    std::erase(stalled_, &task);
    --running_;
    start_waiting();
    engine_.update_sharing(*this);
  }
}

}  // namespace q7x2
