// What the ranks of a new group publish to each other, by its kind ("card", ...): sealed, so that
// it shows whether it comes from the job and belongs where it was found (job_secret.h).
#pragma once

#include <string>
#include <string_view>

#include "transport/job_secret.h"

namespace q7x2 {

struct Seat {
  int rank = 0;
  int world_size = 1;
  std::string group = {};  ///< its name, for messages
};

std::string publish(const JobSecret& secret, const std::string& kind, const Seat& seat,
                    std::string_view text);
/// What `seat` published. Throws Error(kMismatch).
std::string read_published(const JobSecret& secret, const std::string& kind, const Seat& seat,
                           std::string_view sealed);

}  // namespace q7x2
