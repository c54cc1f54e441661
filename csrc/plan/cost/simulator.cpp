#include "plan/cost/simulator.h"

#include "plan/cost/simulated_run.h"

namespace q7x2 {

Simulator::Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding)
    : plans_(plans, fabric, coding, std::nullopt) {}

Simulator::Simulator(std::span<const Plan> plans, const Fabric& fabric, const CodingCost& coding,
                     const Symmetry& symmetry)
    : plans_(plans, fabric, coding, symmetry) {}

Prediction Simulator::run(const SimulatedCall& call) const {
  return *SimulatedRun(plans_, call).run();
}

std::optional<Prediction> Simulator::run_symmetric(const SimulatedCall& call) const {
  return SimulatedRun(plans_, call).run();
}

}  // namespace q7x2
