// How the members of an annex (executor/annex.h) meet: the ranks of a new group, and the servers
// that rank 0 has invited.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/torch_compat.h"
#include "transport/group.h"

namespace q7x2 {

/// The longest that the members wait for each other.
inline constexpr std::chrono::milliseconds kAnnexTimeout{10'000};

struct AnnexSeat {
  int member = 0;    ///< the rank, or the number of ranks and that of the server
  int ranks = 0;     ///< of the group that is served
  int servers = 0;   ///< of the annex
  std::string key;   ///< see ServerMeeting
  std::string name;  ///< of the group that is served
  std::chrono::milliseconds timeout = kAnnexTimeout;
  std::vector<uint64_t> job_ranks = {};  ///< of the ranks
};

/// Meets all other members, and runs `prepare` before anybody goes on. All members call it. Throws
/// what kept any of them from it.
std::shared_ptr<Group> make_annex_group(
    const c10::intrusive_ptr<c10d::Store>& root, const AnnexSeat& seat,
    const std::function<void(const std::shared_ptr<Group>&)>& prepare);

}  // namespace q7x2
