#include "transport/quirks/forked_ucx.h"

#include <atomic>

namespace q7x2 {
namespace {

std::atomic<bool> was_forked{false};

}  // namespace

void note_forked_ucx() {
  was_forked = true;
}

bool is_forked_from_ucx() {
  return was_forked;
}

}  // namespace q7x2
