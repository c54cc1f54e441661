// Plans that users write as JSON: what is accepted was proven by the checker.
#include <algorithm>

#include "format.h"
#include "plan/algorithms/generators.h"
#include "plan/files/plan_json.h"

namespace q7x2::fuzz {
namespace {

std::string example(Random& random) {
  const auto all = generators();
  for (;;) {
    const Generator& each = all[random() % all.size()];
    const ScheduleRequest request{each.collective, 2 + static_cast<int>(random() % 3),
                                  is_rooted(each.collective) ? 0 : -1};
    if (each.parameters == nullptr && each.applies(request)) return to_json(each.generate(request));
  }
}

bool read(std::string_view input, Random&) {
  const Schedule schedule = schedule_from_json(input);
  require(schedule.world_size() >= 1, "a Schedule of nobody");
  require(schedule.algorithm().starts_with("file:"), "a Schedule has another name");
  return true;
}

const std::vector<std::string> kWords = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "\"",
                                         "0",
                                         "1",
                                         "2",
                                         "-1",
                                         "1e999",
                                         "4294967296",
                                         "true",
                                         "out[0]",
                                         "in[0]",
                                         "scratch[0]",
                                         "out[1]",
                                         "scratch[65535]",
                                         "\"send\"",
                                         "\"recv\"",
                                         "\"copy\"",
                                         "\"reduce\"",
                                         "\"after\"",
                                         "\"to\"",
                                         "\"from\"",
                                         "\"into\"",
                                         "\"final\"",
                                         "\"length\"",
                                         "\"ranks\":",
                                         "\"part_weights\":",
                                         "[0, 1]",
                                         "\"root\":0,"};

}  // namespace

std::vector<Format> plan_formats() {
  return {{"plan", 1, example, read, kWords}};
}

}  // namespace q7x2::fuzz
