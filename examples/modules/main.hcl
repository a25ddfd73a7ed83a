# One module, called for each team: its sandboxes are the same, its values are not.
# `pinfold plan -var 'teams={ red = {}, blue = { workers = 3 } }'` shows another team.

variable "teams" {
  type = map(object({
    workers = optional(number, 2)
    memory  = optional(string, "64MiB")
  }))
  default     = { red = {}, blue = { workers = 1, memory = "128MiB" } }
  description = "What each team gets."
}

image "base" {
  source = "host"
}

network "teams" {}

# Rules for all teams: policies and images go into a module as values.
policy "day" {
  lifetime {
    ttl = "24h"
  }
}

module "team" {
  source   = "./team"
  for_each = var.teams

  image    = image.base
  network  = network.teams
  policies = [policy.day]
  workers  = each.value.workers
  memory   = each.value.memory
}

output "boards" {
  value = { for name, team in module.team : name => team.board }
}

output "workers" {
  value = module.team["red"].workers
}
