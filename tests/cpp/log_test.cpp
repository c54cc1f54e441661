// What is written to stderr depends on Q7X2_LOG, which is read once: so each case is a process.
#include "base/log.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

[[noreturn]] void say_all(const char* setting) {
  if (setting == nullptr) {
    ::unsetenv("Q7X2_LOG");
  } else {
    ::setenv("Q7X2_LOG", setting, 1);
  }
  log(Level::kWarn, "one");
  log(Level::kInfo, "two");
  log(Level::kDebug, "three");
  std::_Exit(0);
}

TEST(Log, WritesWarningsUnlessItIsToldOtherwise) {
  // A forked copy would have what another test of this process has read.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string warning = "^q7x2: warning: one\n";
  const std::string info = "q7x2: info: two\n";
  const std::string debug = "q7x2: debug: three\n";
  const auto exits = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(say_all(nullptr), exits, warning + "$");
  EXPECT_EXIT(say_all(""), exits, warning + "$");
  EXPECT_EXIT(say_all("warn"), exits, warning + "$");
  EXPECT_EXIT(say_all("info"), exits, warning + info + "$");
  EXPECT_EXIT(say_all("debug"), exits, warning + info + debug + "$");
  EXPECT_EXIT(say_all("off"), exits, "^$");
}

TEST(Log, AnUnknownSettingIsRefusedWhereItIsChecked) {
  ::setenv("Q7X2_LOG", "loud", 1);
  EXPECT_THROW(check_log_setting(), Error);
  for (const char* setting : {"off", "warn", "info", "debug", ""}) {
    ::setenv("Q7X2_LOG", setting, 1);
    EXPECT_NO_THROW(check_log_setting()) << setting;
  }
  ::unsetenv("Q7X2_LOG");
}

}  // namespace
}  // namespace q7x2
