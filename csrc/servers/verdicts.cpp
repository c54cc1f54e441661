#include "servers/verdicts.h"

#include <string>

#include "base/log.h"

namespace q7x2 {
namespace {

// The words of a vote. kServer + i: server i has failed. A byte has no word for the servers behind
// the first 252: if one of them fails, the vote does not name it.
constexpr uint8_t kSucceeded = 0;
constexpr uint8_t kDeclined = 1;
constexpr uint8_t kUnwanted = 2;
constexpr uint8_t kFailed = 3;
constexpr int kServer = 4;
constexpr int kMostNamed = 256 - kServer;

}  // namespace

uint8_t Verdicts::word_of(const CreditGrant& grant, const std::optional<Error>& error) const {
  if (!error && grant.slots() == 0) return grant.is_wanted() ? kDeclined : kUnwanted;
  if (!error) return kSucceeded;
  const int server = error->rank() - ranks_;
  return static_cast<uint8_t>(server < 0 || server >= kMostNamed ? kFailed : kServer + server);
}

bool Verdicts::take(Locked& locked, uint8_t word) {
  if (is_dropped_) return false;
  if (word == kSucceeded) ++served_;
  if (word == kDeclined) ++declined_;
  if (word <= kUnwanted) return word == kSucceeded;
  is_dropped_ = true;
  const int server = word - kServer;
  const bool is_known = server >= 0 && server < static_cast<int>(names_.size());
  const std::string who =
      is_known ? "server '" + names_[static_cast<size_t>(server)] + "' (pid " +
                     std::to_string(group_->membership().peer_info(ranks_ + server).pid) +
                     ") does not serve any more"
               : "a call could not be served";
  if (group_->rank() == 0) {
    log(Level::kWarn,
        who + ": the calls of group '" + group_->membership().name() + "' go on without servers");
  }
  group_->fail(locked, Error(ErrorCode::kAborted, "the ranks go on without servers: " + who,
                             is_known ? ranks_ + server : -1));
  return false;
}

}  // namespace q7x2
