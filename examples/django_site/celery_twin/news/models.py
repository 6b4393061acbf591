from django.db import models


class Subscriber(models.Model):
    address = models.EmailField(unique=True)
    confirmed = models.BooleanField(default=False)
    since = models.DateTimeField(auto_now_add=True)
