#include "transport/bootstrap/peer_bootstrap.h"

#include <algorithm>
#include <set>

#include "base/digest.h"
#include "base/process.h"
#include "transport/bootstrap/peer_address.h"
#include "transport/bootstrap/published.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;

// How long a wait sleeps between looks: at first, and after a while.
constexpr milliseconds kNap{1};
constexpr milliseconds kSoon{1000};
constexpr milliseconds kSlice{20};

uint64_t digest_of(const std::vector<PeerInfo>& members) {
  Digest digest;
  for (const PeerInfo& member : members) {
    digest.add(member.process);
  }
  return digest.value();
}

int own_rank(uint64_t process, const PeerBootstrap::Options& options) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, options.title + ": " + why);
  };
  if (options.members.size() > static_cast<size_t>(tag::kMaxRanks)) {
    refuse("a group has at most " + std::to_string(tag::kMaxRanks) + " ranks");
  }
  std::set<uint64_t> seen;
  int own = -1;
  for (size_t i = 0; i < options.members.size(); ++i) {
    if (!seen.insert(options.members[i].process).second) {
      refuse("the list names " + describe_process(options.members[i]) + " twice");
    }
    if (options.members[i].process == process) {
      own = static_cast<int>(i);
    }
  }
  if (own < 0) {
    refuse("the list does not name this process");
  }
  return own;
}

}  // namespace

PeerBootstrap::PeerBootstrap(Runtime& runtime, Options options)
    : runtime_(runtime),
      options_(std::move(options)),
      deadline_(Clock::now() + options_.timeout),
      rank_(own_rank(runtime.process(), options_)),
      rounds_(rank_, size()),
      late_({.rank = rank_,
             .size = size(),
             .group = options_.name,
             .timeout = options_.timeout,
             .monitor = options_.monitor,
             .explain = options_.explain_missing}) {
  runtime_.enter();
  stamp_.key = options_.scope + '\n' + options_.name;
  stamp_.peer_info = options_.members[static_cast<size_t>(rank_)].encode();
  stamp_.process = runtime_.process();
  stamp_.list = digest_of(options_.members);
  Locked locked(runtime_.lock());
  BootstrapTable& table = runtime_.bootstraps();
  const bool is_new = options_.is_repeatable ? table.begin_next(locked, stamp_, inbox_)
                                             : table.begin(locked, stamp_, inbox_);
  if (!is_new) {
    throw error(ErrorCode::kInvalidArgument, options_.is_repeatable
                                                 ? "this process makes it twice at the same time"
                                                 : "the uuid was already used in this process");
  }
  answer_ = message(BootstrapKind::kRefusal);
  answer_.code = ErrorCode::kInvalidArgument;
  answer_.text = options_.title + ": the uuid was already used by " +
                 describe_process(options_.members[static_cast<size_t>(rank_)]);
  runtime_.peers().admission().admit(locked, options_.members,
                                     options_.members[static_cast<size_t>(rank_)].host_key);
}

bool PeerBootstrap::is_of_this_host(const PeerInfo& member) const {
  return member.host_key == options_.members[static_cast<size_t>(rank_)].host_key;
}

void PeerBootstrap::ask_to_be_admitted(const Check& check) {
  if (std::exchange(has_asked_, true)) return;
  {
    Locked locked(runtime_.lock());
    call_who_cannot(locked);
    for (const int each : neighbours()) {
      const PeerInfo& member = options_.members[static_cast<size_t>(each)];
      runtime_.peers().ask_for_admission(locked, member, is_of_this_host(member));
    }
  }
  const auto is_pending = [&](TimePoint now) {
    Locked locked(runtime_.lock());
    return runtime_.peers().awaits_admission(locked, now);
  };
  const TimePoint until = std::min(deadline_, Clock::now() + PortCall::kPatience);
  for (TimePoint now = Clock::now(); now < until && is_pending(now); now = Clock::now()) {
    runtime_.drive();
    look_around(check);
    inbox_.wait(kNap);
  }
}

/// Nobody can call a process behind NAT that has no port outside. So it calls all others.
void PeerBootstrap::call_who_cannot(Locked& locked) {
  const PeerInfo& mine = options_.members[static_cast<size_t>(rank_)];
  for (const PeerInfo& member : options_.members) {
    if (is_nat_between(mine, member) && stream_addresses(member, mine).empty()) {
      runtime_.bootstraps().reach(locked, member);
    }
  }
}

PeerBootstrap::~PeerBootstrap() {
  if (runtime_.forked()) {
    return;
  }
  fail(error(ErrorCode::kAborted, describe(rank_) + " gave up", rank_));
  std::vector<uint64_t> heard;
  for (int round = 0; round < rounds_.rounds(); ++round) {
    heard.push_back(options_.members[static_cast<size_t>(rounds_.from(round))].process);
  }
  std::optional<BootstrapMessage> decision;
  if (answer_.kind == BootstrapKind::kFailure) {
    decision = answer_;
  } else if (!is_in_doubt_) {
    decision = message(BootstrapKind::kCommit);
  }
  Locked locked(runtime_.lock());
  runtime_.bootstraps().end(locked, std::move(heard), answer_, std::move(decision));
}

// ------------------------------------------------------------------------------------- exchange

Bootstrap::Met PeerBootstrap::meet(const std::string& mine, const Hooks&) {
  for (;;) {
    try {
      Met met{.all = exchange("peer_info", mine, [] {}), .decision = {}};
      has_met_ = true;
      return met;
    } catch (const LaterAttempt&) {
      // Again from the beginning, in that one.
    }
  }
}

std::vector<std::string> PeerBootstrap::exchange(const std::string& what, const std::string& mine,
                                                 const Check& check) {
  ask_to_be_admitted(check);
  std::vector<std::string> all(options_.members.size());
  const JobSecret& secret = runtime_.secret();
  const Seat seat{rank_, size(), options_.name, attempt()};
  all[static_cast<size_t>(rank_)] = publish(secret, what, seat, mine);
  for (int k = 0; k < rounds_.rounds(); ++k) {
    const Round round{what, k};
    BootstrapMessage pieces = message(BootstrapKind::kPieces, round);
    pieces.members = options_.list;
    std::vector<std::string> known;
    for (int i = 0; i < rounds_.pieces(k); ++i) {
      known.push_back(all[static_cast<size_t>(rounds_.owner(rank_, i))]);
    }
    pieces.body = pack_pieces(known);
    const std::string bytes = pieces.encode();
    {
      Locked locked(runtime_.lock());
      runtime_.bootstraps().keep(locked, stamp_.key, what, k, bytes);
    }
    send(rounds_.to(k), bytes);

    const int from = rounds_.from(k);
    std::vector<std::string> theirs = unpack_pieces(receive(round, from, check), rounds_.pieces(k));
    for (int i = 0; i < rounds_.pieces(k); ++i) {
      all[static_cast<size_t>(rounds_.owner(from, i))] = std::move(theirs[static_cast<size_t>(i)]);
    }
  }
  return read_all_published(secret, what, seat, all);
}

std::string PeerBootstrap::receive(const Round& round, int from, const Check& check) {
  const uint64_t process = options_.members[static_cast<size_t>(from)].process;
  const auto began = Clock::now();
  auto next_ask = Clock::now() + kAskPeriod;
  late_.begin(deadline_);
  awaited_ = round;
  culprit_ = from;
  for (;;) {
    runtime_.drive();
    read();
    if (const auto found = arrived_[round].find(process); found != arrived_[round].end()) {
      Locked locked(runtime_.lock());
      runtime_.bootstraps().set_waiting(locked, stamp_.key, -1);
      return std::move(found->second);
    }
    look_around(check);
    if (options_.missing) late_.look(Clock::now(), [this] { return missing(); });
    if (Clock::now() >= deadline_) {
      throw late("waiting for " + describe(culprit_));
    }
    watch(round, from);
    if (Clock::now() >= next_ask) {
      next_ask = Clock::now() + kAskPeriod;
      ask(round, from);
    }
    inbox_.wait(Clock::now() - began < kSoon ? kNap : kSlice);
  }
}

/// Sees whether the member that this one waits for is alive.
void PeerBootstrap::watch(const Round& round, int from) {
  bool broken = false;
  {
    Locked locked(runtime_.lock());
    runtime_.bootstraps().set_waiting(locked, stamp_.key, culprit_);
    const Peer* const peer =
        runtime_.peers().find(locked, options_.members[static_cast<size_t>(from)].process);
    if (peer != nullptr && peer->life.is_shm_blocked()) {
      throw error(ErrorCode::kTransport,
                  describe(from) + " no longer receives messages from other processes of its host",
                  from);
    }
    if (peer == nullptr || !peer->life.is_dead()) {
      return;
    }
    if (peer->life.has_ended() || reopened_[from] >= kMostReopened) {
      throw error(ErrorCode::kPeerFailed, describe(from) + " failed: " + peer->life.reason(), from);
    }
    broken = true;
  }
  if (broken) {
    ++reopened_[from];
    ask(round, from);
  }
}

void PeerBootstrap::wait_for(const std::function<int()>& missing, const Check& check) {
  for (int member = missing(); member >= 0; member = missing()) {
    runtime_.drive();
    read();
    look_around(check);
    culprit_ = member;
    if (Clock::now() >= deadline_) {
      throw late("waiting for the memory of " + describe(member));
    }
    inbox_.wait(kNap);
  }
}

bool PeerBootstrap::shares_host() const {
  const std::string& host = options_.members[static_cast<size_t>(rank_)].host_key;
  return std::ranges::count(options_.members, host, &PeerInfo::host_key) > 1;
}

void PeerBootstrap::look_around(const Check& check) {
  block_at_exit();
  if (runtime_.queue().is_blocked() && shares_host()) {
    throw error(ErrorCode::kTransport, runtime_.queue().error().what());
  }
  check();
  options_.check_interrupt();
  heed_losses();
}

void PeerBootstrap::heed_losses() {
  if (options_.monitor == nullptr) return;
  for (const MemberMonitor::Loss& loss : options_.monitor->losses()) {
    throw error(ErrorCode::kPeerFailed, loss.reason, loss.rank);
  }
}

/// Those that this member waits for, as far as it knows.
std::vector<int> PeerBootstrap::missing() const {
  std::vector<int> members = has_met_ ? std::vector<int>{} : options_.missing();
  return members.empty() ? std::vector<int>{culprit_} : members;
}

Error PeerBootstrap::late(const std::string& what) {
  if (!options_.missing) {
    return error(ErrorCode::kTimeout,
                 "timed out after " + std::to_string(options_.timeout.count()) + " ms, " + what,
                 culprit_);
  }
  const std::vector<int> members = missing();
  const char* const did = has_met_ ? " joined, but did not go on" : " did not join";
  return error(ErrorCode::kTimeout, late_.describe(members, did), members.front());
}

// -------------------------------------------------------------------------------- what has come

void PeerBootstrap::read() {
  const std::vector<BootstrapMessage> messages = inbox_.take();
  bool has_moved = false;
  for (const BootstrapMessage& message : messages) {
    if (message.attempt <= stamp_.attempt || has_met_) continue;
    go_on(message);
    has_moved = true;
  }
  for (const BootstrapMessage& message : messages) {
    if (message.attempt == stamp_.attempt) take(message);
  }
  if (has_moved) throw LaterAttempt();
}

/// The attempt of `message` follows from this one's failure.
void PeerBootstrap::go_on(const BootstrapMessage& message) {
  stamp_.attempt = message.attempt;
  arrived_.clear();
  answer_.attempt = stamp_.attempt;
  Locked locked(runtime_.lock());
  runtime_.bootstraps().go_on(locked, stamp_);
}

void PeerBootstrap::take(const BootstrapMessage& message) {
  const bool same_list = message.list == stamp_.list;
  const bool is_member = message.subject >= 0 && message.subject < size();
  switch (message.kind) {
    case BootstrapKind::kPieces:
      if (!same_list) {
        refuse_list(message);
      }
      if (is_partner(message)) {
        arrived_[{message.exchange, message.round}][message.process] = message.body;
      }
      return;
    case BootstrapKind::kWaiting:
      // It speaks for the member that it waits for, if it knows one.
      if (same_list && is_member && awaited_ == Round(message.exchange, message.round)) {
        culprit_ = message.subject;
      }
      return;
    case BootstrapKind::kRefusal:
    case BootstrapKind::kFailure:
      throw Error(message.code, message.text, same_list && is_member ? message.subject : -1);
    case BootstrapKind::kReady:
    case BootstrapKind::kAskReady:
    case BootstrapKind::kCommit:
      if (same_list) hear(message);
      return;
    case BootstrapKind::kAsk:
      return;  // the table has answered
  }
}

/// Whether it comes from the member that sends to this one in its round.
bool PeerBootstrap::is_partner(const BootstrapMessage& message) const {
  if (message.round >= rounds_.rounds()) {
    return false;
  }
  const auto from = static_cast<size_t>(rounds_.from(message.round));
  return options_.members[from].process == message.process;
}

void PeerBootstrap::refuse_list(const BootstrapMessage& message) {
  std::string who = "another process";
  try {
    strangers_.push_back(PeerInfo::decode(message.peer_info));
    who = describe_process(strangers_.back());
  } catch (const Error&) {
    // It cannot be told.
  }
  throw error(ErrorCode::kMismatch,
              "the members were given different lists: " +
                  describe_process(options_.members[static_cast<size_t>(rank_)]) + " has " +
                  options_.list + ", " + who + " has " + message.members);
}

// --------------------------------------------------------------------------------- what is sent

BootstrapMessage PeerBootstrap::message(BootstrapKind kind, const Round& round) const {
  BootstrapMessage message = stamp_;
  message.kind = kind;
  message.exchange = round.first;
  message.round = round.second;
  return message;
}

void PeerBootstrap::send(int member, std::string_view message) {
  Locked locked(runtime_.lock());
  runtime_.bootstraps().send(locked, options_.members[static_cast<size_t>(member)], message);
}

void PeerBootstrap::ask(const Round& round, int member) {
  send(member, message(BootstrapKind::kAsk, round).encode());
}

}  // namespace q7x2
