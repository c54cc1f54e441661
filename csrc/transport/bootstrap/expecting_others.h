// ExpectingOthers: as long as it exists, hosts that this process does not know yet may call its
// port for heartbeats.
#pragma once

#include "transport/run/runtime.h"

namespace q7x2 {

class ExpectingOthers {
 public:
  explicit ExpectingOthers(Runtime& runtime) : runtime_(runtime) {
    Locked locked(runtime_.lock());
    runtime_.peers().admission().expect_others(locked);
  }
  ~ExpectingOthers() {
    if (runtime_.forked()) return;
    Locked locked(runtime_.lock());
    runtime_.peers().admission().expect_no_others(locked);
  }
  ExpectingOthers(const ExpectingOthers&) = delete;
  ExpectingOthers& operator=(const ExpectingOthers&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace q7x2
