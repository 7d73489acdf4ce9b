"""Ray's errors, as far as standfast knows them."""


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass
