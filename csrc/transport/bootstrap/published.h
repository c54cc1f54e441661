// What the members of a new group publish to each other, by its kind ("peer info", ...): sealed, so
// that it shows whether it comes from the job and belongs where it was found (job_secret.h). A seal
// names the group and the attempt to make it, so what was published for another one is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/trust/job_secret.h"

namespace q7x2 {

struct Seat {
  int rank = 0;
  int world_size = 1;
  std::string group = {};    ///< its name
  std::string attempt = {};  ///< epoch or uuid: no other attempt to make the group has it
};

std::string publish(const JobSecret& secret, const std::string& kind, const Seat& seat,
                    std::string_view text);
/// What `seat` published. Throws Error(kMismatch).
std::string read_published(const JobSecret& secret, const std::string& kind, const Seat& seat,
                           std::string_view sealed);
/// What all seats of the group published, by rank. `seat`: any. Throws Error(kMismatch).
std::vector<std::string> read_all_published(const JobSecret& secret, const std::string& kind,
                                            Seat seat, const std::vector<std::string>& sealed);

}  // namespace q7x2
