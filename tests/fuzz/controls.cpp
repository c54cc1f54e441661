// Control messages, behind their envelopes.
#include "format.h"
#include "transport/peer/control.h"
#include "transport/ucx/tag.h"

namespace q7x2::fuzz {
namespace {

constexpr uint64_t kSender = 7;

std::string example(Random& random) {
  Control control;
  control.type = static_cast<ControlType>(1 + random() % 6);
  control.slot = static_cast<uint16_t>(random() % tag::kMaxGroups);
  control.sender_slot = static_cast<uint16_t>(random() % tag::kMaxGroups);
  control.sender = static_cast<int32_t>(random() % tag::kMaxRanks);
  control.receiver = static_cast<int32_t>(random() % tag::kMaxRanks);
  control.code = static_cast<ErrorCode>(random() % 9);
  control.subject = static_cast<int32_t>(random() % 5) - 1;
  control.text = std::string(random() % 100, 'x');
  control.sequence = random();
  control.fingerprint = random();
  control.state = static_cast<CallState>(random() % 3);
  return control.encode();
}

bool is_rank(int32_t rank) {
  return rank >= 0 && rank < tag::kMaxRanks;
}

bool read(std::string_view input, Random&) {
  const auto control = Control::decode(kSender, input);
  if (!control) return false;
  require(control->process == kSender, "a message says who has sent it");
  require(control->type >= ControlType::kHello && control->type <= ControlType::kFailedCall,
          "a type");
  require(control->code <= ErrorCode::kInternal, "a code");
  require(control->state <= CallState::kComplete, "a state");
  require(control->slot < tag::kMaxGroups && control->sender_slot < tag::kMaxGroups, "a slot");
  require(is_rank(control->sender) && is_rank(control->receiver), "a rank");
  require(control->subject == -1 || is_rank(control->subject), "the rank of an error");
  require(control->text.size() <= 2048, "a long text");
  return true;
}

}  // namespace

std::vector<Format> control_formats() {
  return {{"control", 18, example, read}};
}

}  // namespace q7x2::fuzz
