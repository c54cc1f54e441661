#include "servers/offload_order.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "executor/collective/carry_out.h"
#include "executor/collective/message.h"
#include "executor/sparse/row_source.h"
#include "fabric/json.h"
#include "plan/choose/publication.h"
#include "transport/run/runtime.h"
#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

constexpr uint32_t kOrderTag = 0x7100;
constexpr uint32_t kTextTag = 0x7101;
constexpr std::chrono::milliseconds kTextTimeout{60'000};

enum class Kind : uint8_t { kPlanned, kBlocks, kFabric };

struct OrderBytes {
  uint64_t bytes = 0;   // length of the tensor, or of the Fabric's text, which follows
  uint64_t agreed = 0;  // see CollectiveCall and SparseCall
  int64_t timeout = 0;  // milliseconds
  int32_t root = -1;
  int32_t divisor = 1;
  uint8_t kind = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t reduce = 0;
  uint8_t is_wanted = 0;
  std::array<uint8_t, 3> unused{};
  std::array<std::byte, Publication::kBytes> choice{};
};
static_assert(std::is_trivially_copyable_v<OrderBytes>);

/// Receives an order. It has no timeout and is never reported as late.
class AwaitedOrder final : public Task {
 public:
  explicit AwaitedOrder(std::shared_ptr<Group> servers)
      : Task(std::move(servers), std::chrono::milliseconds::zero()) {}

  std::string name() const override {
    return "the next order in group '" + group().membership().name() + "'";
  }
  const OrderBytes& wire() const { return wire_; }

  void start(Locked& locked) override {
    record(locked).warn_at = TimePoint::max();
    record(locked).next_inquiry = TimePoint::max();
    group().messages().receive(locked, *this, 0, 0,
                               tag::point_to_point(group().slot(), 0, kOrderTag), tag::kExact,
                               &wire_, sizeof(wire_));
  }
  void completed(Locked& locked, uint32_t, size_t length, uint64_t) override {
    if (length == sizeof(wire_)) {
      finish(locked);
    } else {
      fail(locked, Error(ErrorCode::kMismatch, name() + " is cut short", 0));
    }
  }

 private:
  OrderBytes wire_;
};

std::shared_ptr<MessageTask> message(const std::shared_ptr<Group>& servers,
                                     MessageTask::Direction direction, int peer, uint32_t tag,
                                     std::span<std::byte> bytes, std::shared_ptr<void> owner) {
  return std::make_shared<MessageTask>(servers, direction, peer, tag, bytes.data(), bytes.size(),
                                       std::move(owner), kTextTimeout);
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kMismatch, "rank 0's order cannot be carried out: " + why, 0);
}

PlannedOrder planned(const OrderBytes& wire, int ranks) {
  const auto collective = static_cast<Collective>(wire.collective);
  const bool has_root = collective == Collective::kReduce;
  if (collective != Collective::kAllReduce && !has_root) refuse("it is not a reduction");
  if (wire.reduce > static_cast<uint8_t>(ReduceKind::kBitXor))
    refuse("it has an unknown reduction");
  if (has_root ? wire.root < 0 || wire.root >= ranks : wire.root != -1)
    refuse("its root is not valid");
  PlannedOrder order;
  CollectiveCall& call = order.call;
  call.collective = collective;
  call.root = wire.root;
  call.input = call.output = {{nullptr, wire.bytes}};
  call.dtype = static_cast<DType>(wire.dtype);
  call.reduce = static_cast<ReduceKind>(wire.reduce);
  call.divisor = wire.divisor;
  call.agreed = static_cast<uint32_t>(wire.agreed);
  order.choice = Publication::read(wire.choice).proposals.front();
  return order;
}

SparseOrder blocks(const OrderBytes& wire, int ranks, int servers) {
  SparseOrder order;
  order.call = {.layout = BlockRows::layout_of(wire.bytes, ranks, servers),
                .ranks = ranks,
                .dtype = static_cast<DType>(wire.dtype),
                .divisor = wire.divisor,
                .agreed = wire.agreed,
                .bytes = wire.bytes,
                .title = kTitleOfBlocks,
                .plan = kServedBlocks};
  order.is_wanted = wire.is_wanted != 0;
  return order;
}

/// Writes an order in its wire form. The text of a Fabric follows in another message.
struct Writer {
  OrderBytes& wire;

  void operator()(const PlannedOrder& order) const {
    const CollectiveCall& call = order.call;
    wire.kind = static_cast<uint8_t>(Kind::kPlanned);
    wire.bytes = call.bytes();
    wire.root = call.root;
    wire.divisor = call.divisor;
    wire.agreed = call.agreed;
    wire.collective = static_cast<uint8_t>(call.collective);
    wire.dtype = static_cast<uint8_t>(call.dtype);
    wire.reduce = static_cast<uint8_t>(call.reduce);
    Publication{.proposals = {order.choice}, .environment = {}}.write(wire.choice);
  }
  void operator()(const SparseOrder& order) const {
    const SparseCall& call = order.call;
    wire.kind = static_cast<uint8_t>(Kind::kBlocks);
    wire.bytes = call.bytes;
    wire.divisor = call.divisor;
    wire.agreed = call.agreed;
    wire.dtype = static_cast<uint8_t>(call.dtype);
    wire.is_wanted = order.is_wanted ? 1 : 0;
  }
  void operator()(const FabricOrder& order) const {
    wire.kind = static_cast<uint8_t>(Kind::kFabric);
    wire.bytes = order.json.size();
  }
};

}  // namespace

void send_order(const std::shared_ptr<Group>& servers, int ranks, const OffloadOrder& order) {
  const auto wire = std::make_shared<OrderBytes>();
  wire->timeout = order.timeout.count();
  std::visit(Writer{*wire}, order.what);
  const auto* const fabric = std::get_if<FabricOrder>(&order.what);
  const auto text = std::make_shared<std::string>(fabric != nullptr ? fabric->json : "");
  const auto send = [&](int server, uint32_t tag, std::span<std::byte> bytes, auto owner) {
    servers->runtime().submit(
        message(servers, MessageTask::Direction::kSend, server, tag, bytes, std::move(owner)),
        /*caller_waits=*/false);
  };
  for (int server = ranks; server < servers->world_size(); ++server) {
    send(server, kOrderTag, std::as_writable_bytes(std::span(wire.get(), 1)), wire);
    if (!text->empty()) send(server, kTextTag, std::as_writable_bytes(std::span(*text)), text);
  }
}

OffloadOrder receive_order(const std::shared_ptr<Group>& servers, int ranks) {
  const auto task = std::make_shared<AwaitedOrder>(servers);
  carry_out(*servers, task);
  const OrderBytes& wire = task->wire();
  const auto timeout = std::chrono::milliseconds(wire.timeout);
  if (wire.kind > static_cast<uint8_t>(Kind::kFabric)) refuse("it is of an unknown kind");
  const auto kind = static_cast<Kind>(wire.kind);
  if (kind != Kind::kFabric) {
    if (wire.dtype >= static_cast<uint8_t>(DType::kBytes)) refuse("it has no elements");
    if (kind == Kind::kPlanned) return {planned(wire, ranks), timeout};
    return {blocks(wire, ranks, servers->world_size() - ranks), timeout};
  }
  if (wire.bytes > kMaxFabricBytes) refuse("its Fabric is too long");
  const auto text = std::make_shared<std::string>(wire.bytes, '\0');
  carry_out(*servers, message(servers, MessageTask::Direction::kReceive, 0, kTextTag,
                              std::as_writable_bytes(std::span(*text)), text));
  return {FabricOrder{std::move(*text)}, timeout};
}

}  // namespace q7x2
