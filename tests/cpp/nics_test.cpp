// Which network interfaces UCX is confined to.
#include "transport/net/nics.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

/// Sets environment variables for the time of a test.
class Environment {
 public:
  explicit Environment(const char* name, const char* value) : name_(name) {
    ::setenv(name, value, 1);
  }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(Nics, UcxIsConfinedToUsableInterfacesIfAtAll) {
  // No interface leads there, so nothing is set apart.
  const Environment master("MASTER_ADDR", "127.0.0.1");
  std::set<std::string> usable;
  for (const Nic& nic : usable_nics()) usable.insert(nic.name);
  EXPECT_FALSE(usable.contains("lo"));
  const NicRoles roles = nic_roles();
  EXPECT_TRUE(roles.rails.empty());
  if (!roles.shared.empty()) {
    EXPECT_EQ(std::set<std::string>(roles.shared.begin(), roles.shared.end()), usable);
    EXPECT_EQ(roles.shared.size(), usable.size());
  }
}

TEST(Nics, TheUsersChoiceOfInterfacesStands) {
  const Environment chosen("UCX_NET_DEVICES", "all");
  const NicRoles roles = nic_roles();
  EXPECT_TRUE(roles.shared.empty());
  EXPECT_TRUE(roles.rails.empty());
}

}  // namespace
}  // namespace q7x2
