variable "image" {
  type = any
}

variable "network" {
  type = any
}

variable "policies" {
  type    = any
  default = []
}

variable "workers" {
  type = number
}

variable "memory" {
  type = string
}
