#include "transport/server_roll.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "transport/card.h"

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
std::string meeting_key(const std::string& meeting, const std::string& what) {
  return "q7x2/meetings/" + meeting + "/" + what;
}

uint64_t to_number(const std::string& text) {
  const auto number = parse_number<uint64_t>(text);
  if (!number)
    throw Error(ErrorCode::kMismatch, "a text about servers in the store cannot be read");
  return *number;
}

std::string encode(const ServerMeeting& meeting) {
  std::vector<std::string> parts{meeting.key, meeting.group, std::to_string(meeting.ranks)};
  for (size_t i = 0; i < meeting.numbers.size(); ++i) {
    parts.push_back(std::to_string(meeting.numbers[i]));
    parts.push_back(meeting.names[i]);
  }
  return encode_list(parts);
}

ServerMeeting decode(std::string_view text) {
  const std::vector<std::string> parts = decode_list(text);
  if (parts.size() < 3 || parts.size() % 2 == 0) {
    throw Error(ErrorCode::kMismatch, "a list of servers in the store cannot be read");
  }
  ServerMeeting meeting{.key = parts[0], .group = parts[1], .numbers = {}, .names = {}};
  meeting.ranks = static_cast<int>(to_number(parts[2]));
  for (size_t i = 3; i < parts.size(); i += 2) {
    meeting.numbers.push_back(static_cast<int64_t>(to_number(parts[i])));
    meeting.names.push_back(parts[i + 1]);
  }
  return meeting;
}

}  // namespace

// ------------------------------------------------------------------------------------------ rank 0

// One whose announcement is not there yet comes to the next group.
std::vector<ServerRoll::Listed> ServerRoll::listed(int64_t count, const Options& options) {
  std::vector<Listed> servers;
  for (int64_t number = 1; number <= count; ++number) {
    if (root_.check(server_key(number, "/left")) || !root_.check(server_key(number))) continue;
    const std::string sealed = root_.get({server_key(number)}).front();
    const std::string who = "server " + std::to_string(number);
    try {
      const std::vector<std::string> said = decode_list(secret_.open(who, sealed, who));
      if (said.size() != 2) throw Error(ErrorCode::kMismatch, who + " says nothing of itself");
      if (options.has_ended(to_number(said[1]))) {
        root_.set(server_key(number, "/left"), "ended");
        continue;
      }
      servers.push_back({number, said[0]});
    } catch (const Error& error) {
      root_.set(server_key(number, "/left"), "refused");
      options.warn(std::string(error.what()) + "; it does not serve this job");
      // It cannot read this either, and learns why it is not wanted.
      const int64_t invitation = root_.add(server_key(number, "/invitations"), 1);
      root_.set(invitation_key(number, invitation), secret_.seal("invitation", "refused"));
    }
  }
  return servers;
}

std::optional<ServerMeeting> ServerRoll::invite(const std::string& group, int ranks,
                                                const Options& options) {
  const int64_t count = root_.add(kCount, 0);
  if (count <= 0) return std::nullopt;
  std::vector<Listed> invited = listed(count, options);
  if (invited.empty()) return std::nullopt;
  ServerMeeting meeting{
      .key = random_key(), .group = group, .ranks = ranks, .numbers = {}, .names = {}};
  for (const Listed& server : invited) {
    const int64_t invitation = root_.add(server_key(server.number, "/invitations"), 1);
    root_.set(invitation_key(server.number, invitation), secret_.seal("invitation", meeting.key));
  }
  const auto until = Clock::now() + options.patience;
  const auto has_come = [&](const Listed& server) {
    return root_.check(meeting_key(meeting.key, std::to_string(server.number)));
  };
  auto missing = invited.begin();  // those before it have come
  while (true) {
    missing = std::find_if_not(missing, invited.end(), has_come);
    if (missing == invited.end() || Clock::now() >= until) break;
    options.attend();
    std::this_thread::sleep_for(kPause);
  }
  for (auto server = invited.begin(); server != invited.end(); ++server) {
    if (server < missing || has_come(*server)) {
      meeting.numbers.push_back(server->number);
      meeting.names.push_back(server->name);
      continue;
    }
    root_.set(server_key(server->number, "/left"), "given up");
    options.warn("server " + std::to_string(server->number) + " ('" + server->name +
                 "') has not come within " + std::to_string(options.patience.count()) +
                 " ms: the group '" + group + "' goes on without it");
  }
  root_.set(meeting_key(meeting.key, "list"), secret_.seal(meeting.key, encode(meeting)));
  if (meeting.numbers.empty()) return std::nullopt;
  return meeting;
}

// ---------------------------------------------------------------------------------------- a server

ServerSeat::ServerSeat(KeyStore& root, const JobSecret& secret, std::string name, uint64_t process)
    : root_(root), secret_(secret), name_(std::move(name)), process_(process) {
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
  root_.set(server_key(number_), secret_.seal("server " + std::to_string(number_),
                                              encode_list({name_, std::to_string(process_)})));
}

std::optional<std::string> ServerSeat::look() {
  if (!root_.check(invitation_key(number_, next_))) return std::nullopt;
  const std::string sealed = root_.get({invitation_key(number_, next_)}).front();
  ++next_;
  std::string meeting(secret_.open("invitation", sealed, "the invitation to a group"));
  root_.set(meeting_key(meeting, std::to_string(number_)), "here");
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
  return decode(secret.open(meeting, sealed, "the list of servers"));
}

}  // namespace q7x2
