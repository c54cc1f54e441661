#include "transport/bootstrap/server_roll.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kCount = "q7x2/servers/count";
constexpr std::chrono::milliseconds kPause{5};
constexpr size_t kLongestName = 200;

std::string server_key(int64_t number, const char* what = "") {
  return "q7x2/servers/" + std::to_string(number) + what;
}
std::string invitation_key(int64_t number, int64_t invitation) {
  return server_key(number, "/invitation/") + std::to_string(invitation);
}
/// Where the seal of a server's peer info is for.
std::string peer_info_place(const std::string& meeting) {
  return "peer info of a server for " + meeting;
}
std::string meeting_key(const std::string& meeting, const std::string& what) {
  return "q7x2/meetings/" + meeting + "/" + what;
}

uint64_t to_number(const std::string& text) {
  const auto number = parse_number<uint64_t>(text);
  if (!number)
    throw Error(ErrorCode::kMismatch, "a text about servers in the store cannot be read");
  return *number;
}

}  // namespace

std::vector<std::string> ServerMeeting::names() const {
  std::vector<std::string> all;
  for (const Server& server : servers) all.push_back(server.name);
  return all;
}

// The key, the group, the number of ranks, their peer infos, and three texts for each server.
std::string ServerMeeting::encode() const {
  std::vector<std::string> parts{key, group, std::to_string(ranks.size())};
  for (const PeerInfo& rank : ranks) parts.push_back(rank.encode());
  for (const Server& server : servers) {
    parts.insert(parts.end(),
                 {std::to_string(server.number), server.name, server.peer_info.encode()});
  }
  return encode_list(parts);
}

ServerMeeting ServerMeeting::decode(std::string_view bytes) {
  constexpr size_t kHead = 3;
  constexpr size_t kEach = 3;
  const std::vector<std::string> parts = decode_list(bytes);
  const size_t rest = parts.size() < kHead ? 0 : parts.size() - kHead;
  const size_t ranks = parts.size() < kHead ? 1 : to_number(parts[2]);
  if (ranks > rest || (rest - ranks) % kEach != 0) {
    throw Error(ErrorCode::kMismatch, "a list of servers cannot be read");
  }
  ServerMeeting meeting{.key = parts[0], .group = parts[1], .ranks = {}, .servers = {}};
  for (size_t i = kHead; i < kHead + ranks; ++i)
    meeting.ranks.push_back(PeerInfo::decode(parts[i]));
  for (size_t i = kHead + ranks; i < parts.size(); i += kEach) {
    meeting.servers.push_back({.number = static_cast<int64_t>(to_number(parts[i])),
                               .name = parts[i + 1],
                               .peer_info = PeerInfo::decode(parts[i + 2])});
  }
  return meeting;
}

// ------------------------------------------------------------------------------------------ rank 0

std::vector<int64_t> ServerRoll::present(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t number = 1; number <= count; ++number) {
    if (root_.check(server_key(number, "/left"))) continue;
    // One that another group has waited for in vain counts only if it has said who it is since.
    if (root_.check(server_key(number)) || !root_.check(server_key(number, "/silent"))) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::optional<ServerMeeting::Server> ServerRoll::announced(int64_t number, const Options& options) {
  const std::string sealed = root_.get({server_key(number)}).front();
  const std::string who = "server " + std::to_string(number);
  try {
    const std::vector<std::string> said = decode_list(secret_.open(who, sealed, who));
    if (said.size() != 2) throw Error(ErrorCode::kMismatch, who + " says nothing of itself");
    if (!options.has_ended(to_number(said[1]))) {
      return Server{.number = number, .name = said[0], .peer_info = {}};
    }
    root_.set(server_key(number, "/left"), "ended");
  } catch (const Error& error) {
    root_.set(server_key(number, "/left"), "refused");
    options.warn(std::string(error.what()) + "; it does not serve this job");
    // It cannot read this either, and learns why it is not wanted.
    const int64_t invitation = root_.add(server_key(number, "/invitations"), 1);
    root_.set(invitation_key(number, invitation), secret_.seal("invitation", "refused"));
  }
  return std::nullopt;
}

std::vector<ServerMeeting::Server> ServerRoll::invite_announced(std::vector<int64_t>& expected,
                                                                const std::string& meeting,
                                                                const Options& options) {
  std::vector<Server> invited;
  std::erase_if(expected, [&](int64_t number) {
    if (!root_.check(server_key(number))) return false;
    std::optional<Server> server = announced(number, options);
    if (!server) return true;
    const int64_t invitation = root_.add(server_key(number, "/invitations"), 1);
    root_.set(invitation_key(number, invitation), secret_.seal("invitation", meeting));
    invited.push_back(std::move(*server));
    return true;
  });
  return invited;
}

void ServerRoll::give_up(const Server& server, const std::string& group, const Options& options) {
  root_.set(server_key(server.number, "/left"), "given up");
  options.warn("server " + std::to_string(server.number) + " ('" + server.name +
               "') has not come within " + std::to_string(options.patience.count()) +
               " ms: the group '" + group + "' goes on without it");
}

void ServerRoll::give_up_silent(int64_t number, const std::string& group, const Options& options) {
  root_.set(server_key(number, "/silent"), "");
  options.warn("server " + std::to_string(number) + " has not said who it is within " +
               std::to_string(options.patience.count()) + " ms: the group '" + group +
               "' goes on without it");
}

bool ServerRoll::is_used() {
  return root_.add(kCount, 0) > 0;
}

std::optional<ServerMeeting> ServerRoll::invite(const std::string& group,
                                                std::vector<PeerInfo> ranks,
                                                const Options& options) {
  const int64_t count = root_.add(kCount, 0);
  if (count <= 0) return std::nullopt;
  std::vector<int64_t> expected = present(count);
  if (expected.empty()) return std::nullopt;
  ServerMeeting meeting{
      .key = random_key(), .group = group, .ranks = std::move(ranks), .servers = {}};
  const auto peer_info_key = [&](const Server& server) {
    return meeting_key(meeting.key, std::to_string(server.number));
  };
  std::vector<Server> invited;
  // Takes those out that have come.
  const auto meet = [&] {
    std::erase_if(invited, [&](Server& server) {
      if (!root_.check(peer_info_key(server))) return false;
      const std::string sealed = root_.get({peer_info_key(server)}).front();
      server.peer_info = PeerInfo::decode(
          secret_.open(peer_info_place(meeting.key), sealed, "the peer info of a server"));
      meeting.servers.push_back(std::move(server));
      return true;
    });
  };
  for (const auto until = Clock::now() + options.patience;;) {
    std::ranges::move(invite_announced(expected, meeting.key, options),
                      std::back_inserter(invited));
    meet();
    if ((expected.empty() && invited.empty()) || Clock::now() >= until) break;
    options.attend();
    std::this_thread::sleep_for(kPause);
  }
  for (const Server& server : invited) give_up(server, group, options);
  for (const int64_t number : expected) give_up_silent(number, group, options);
  std::ranges::sort(meeting.servers, {}, &Server::number);
  root_.set(meeting_key(meeting.key, "list"), secret_.seal(meeting.key, meeting.encode()));
  if (meeting.servers.empty()) return std::nullopt;
  return meeting;
}

// ---------------------------------------------------------------------------------------- a server

ServerSeat::ServerSeat(KeyStore& root, const JobSecret& secret, std::string name,
                       PeerInfo peer_info)
    : root_(root), secret_(secret), name_(std::move(name)), peer_info_(std::move(peer_info)) {
  if (name_.empty() || name_.size() > kLongestName) {
    throw Error(ErrorCode::kInvalidArgument,
                "the name of a server has from 1 to " + std::to_string(kLongestName) +
                    " characters, got " + std::to_string(name_.size()));
  }
  announce();
}

void ServerSeat::announce() {
  number_ = root_.add(kCount, 1);
  next_ = 1;
  root_.set(server_key(number_),
            secret_.seal("server " + std::to_string(number_),
                         encode_list({name_, std::to_string(peer_info_.process)})));
}

std::optional<std::string> ServerSeat::look() {
  if (!root_.check(invitation_key(number_, next_))) return std::nullopt;
  const std::string sealed = root_.get({invitation_key(number_, next_)}).front();
  ++next_;
  std::string meeting(secret_.open("invitation", sealed, "the invitation to a group"));
  root_.set(meeting_key(meeting, std::to_string(number_)),
            secret_.seal(peer_info_place(meeting), peer_info_.encode()));
  return meeting;
}

void ServerSeat::leave() {
  root_.set(server_key(number_, "/left"), "left");
}

std::optional<ServerMeeting> ServerSeat::list_of(KeyStore& root, const JobSecret& secret,
                                                 const std::string& meeting) {
  const std::string key = meeting_key(meeting, "list");
  if (!root.check(key)) return std::nullopt;
  const std::string sealed = root.get({key}).front();
  return ServerMeeting::decode(secret.open(meeting, sealed, "the list of servers"));
}

}  // namespace q7x2
