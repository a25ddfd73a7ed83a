policy "limits" {
  resources {
    memory = var.memory
    pids   = 64
  }
}

# What the team's workers report to. Its address is known once it is made.
sandbox "board" {
  image    = var.image
  command  = ["sleep", "infinity"]
  policies = concat(var.policies, [policy.limits])

  network {
    name = var.network
  }
}

module "worker" {
  source = "../worker"
  count  = var.workers

  image    = var.image
  network  = var.network
  policies = concat(var.policies, [policy.limits])
  name     = "worker-${count.index}"
  board    = sandbox.board.address
}

output "board" {
  value = sandbox.board.address
}

output "workers" {
  value = module.worker[*].address
}
